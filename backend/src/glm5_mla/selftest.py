"""A numerical test at start: what will read the pool on this card, against the reference, on a small case."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from glm5_mla.kernels import KV_LORA_RANK, ROPE_DIM, ROW
from glm5_mla.kernels.reference import ReferenceMlaDecode
from glm5_mla.refusal import Refusal

if TYPE_CHECKING:
    from glm5_mla.sglang.reading import Reading

MAX_ERROR = 3e-3
"""Norm of the difference over norm of the reference, worst request and head. BF16 output alone costs about 1.7e-3."""

LENGTHS = (1, 63, 64, 777, 4096)
POOL_ROWS = 8192


def check(reading: Reading, heads: int, device: torch.device) -> float:
    """Compare with the reference on rows spread over a small pool; returns the worst error.

    Raises `Refusal` when it is above `MAX_ERROR`, or not a number.
    """
    generator = torch.Generator(device).manual_seed(0)
    requests = len(LENGTHS)
    q_nope = torch.randn((requests, heads, KV_LORA_RANK), generator=generator, device=device).to(torch.bfloat16)
    q_rope = torch.randn((requests, heads, ROPE_DIM), generator=generator, device=device).to(torch.bfloat16)
    pool = torch.randn((POOL_ROWS, 1, ROW), generator=generator, device=device).to(torch.float8_e4m3fn)
    indices = torch.randperm(POOL_ROWS, generator=generator, device=device)[: sum(LENGTHS)].int()
    if reading.kernel is not None:
        # Ours promises that a row which no request lists doesn't matter, whatever it holds.
        unused = torch.ones(POOL_ROWS, dtype=torch.bool, device=device)
        unused[indices.long()] = False
        pool.view(torch.uint8)[unused] = 0x7F  # NaN
    qo_indptr = torch.arange(requests + 1, dtype=torch.int32, device=device)
    kv_indptr = torch.tensor([0, *LENGTHS], dtype=torch.int32, device=device).cumsum(0, dtype=torch.int32)
    scale = (KV_LORA_RANK + ROPE_DIM) ** -0.5
    lists = (qo_indptr, kv_indptr, indices)
    wanted = ReferenceMlaDecode(device, heads)(q_nope.float(), q_rope.float(), pool, *lists, sm_scale=scale)
    if reading.kernel is not None:
        got = reading.kernel(q_nope, q_rope, pool, *lists, sm_scale=scale)
    elif reading.flashinfer_dtype == torch.float8_e4m3fn:
        from glm5_mla.sglang.reading import flashinfer_fp8_attend

        got = flashinfer_fp8_attend(q_nope, q_rope, pool, *lists, sm_scale=scale)
    else:  # FlashInfer's BF16 path is SGLang's own choice; there is no FP8 reading to test
        return 0.0
    worst = float(relative_error(got, wanted).max())
    if not worst <= MAX_ERROR:
        raise Refusal(
            "SelfTestFailed",
            f"Kernel {reading.kernel_name} is off by {worst:.1e} from the reference on this card (at most "
            f"{MAX_ERROR:.0e} is right); set GLM5_KERNEL to another kernel and report this.",
        )
    return worst


def relative_error(got: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Norm of the difference over norm of `wanted`, for each [token, head] of two [tokens, heads, width]."""
    difference = torch.linalg.vector_norm(got.double() - wanted.double(), dim=-1)
    return difference / torch.linalg.vector_norm(wanted.double(), dim=-1).clamp_min(1e-30)
