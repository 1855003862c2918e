"""Errors of the kernels that read an FP8 pool, against float32 arithmetic, at contexts and batches of real use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from glm5_mla import kernels
from glm5_mla.kernels import KV_LORA_RANK, ROPE_DIM, ROW

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADS = 8
POOL_ROWS = 495_552
CASES = tuple((batch, context) for batch in (1, 32) for context in (1_024, 8_192, 65_536, 131_072))


def numerics() -> Iterator[dict[str, Any]]:
    """Yield per kernel and case the worst relative error over requests and heads; kernels that can't run say why."""
    import torch

    from glm5_mla.kernels.reference import ReferenceMlaDecode
    from glm5_mla.selftest import relative_error
    from glm5_mla.sglang.reading import flashinfer_fp8_attend, flashinfer_fp8_unavailable

    device = torch.device("cuda")
    generator = torch.Generator(device).manual_seed(0)
    pool = torch.randn((POOL_ROWS, 1, ROW), generator=generator, device=device).to(torch.float8_e4m3fn)
    reference = ReferenceMlaDecode(device, HEADS)
    ways: dict[str, Any] = {}
    for name in ("cuda", "triton", "flashinfer"):
        reason = (
            flashinfer_fp8_unavailable(device, HEADS)
            if name == "flashinfer"
            else kernels.unavailable(name, device, HEADS)
        )
        if reason is not None:
            yield {"kernel": name, "unavailable": reason}
            continue
        ways[name] = flashinfer_fp8_attend if name == "flashinfer" else kernels.make(name, device, HEADS)
    for batch, context in CASES:
        q_nope = torch.randn((batch, HEADS, KV_LORA_RANK), generator=generator, device=device).to(torch.bfloat16)
        q_rope = torch.randn((batch, HEADS, ROPE_DIM), generator=generator, device=device).to(torch.bfloat16)
        qo_indptr = torch.arange(batch + 1, dtype=torch.int32, device=device)
        kv_indptr = qo_indptr * context
        indices = torch.randint(POOL_ROWS, (batch * context,), generator=generator, device=device, dtype=torch.int32)
        arguments = (pool, qo_indptr, kv_indptr, indices)
        scale = ROW**-0.5
        wanted = reference(q_nope.float(), q_rope.float(), *arguments, sm_scale=scale)
        for name, attend in ways.items():
            got = attend(q_nope, q_rope, *arguments, sm_scale=scale)
            worst = float(relative_error(got, wanted).max())
            yield {"kernel": name, "batch": batch, "context": context, "relative_error": worst}
