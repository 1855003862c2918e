"""The GPU side of `glm5_mla.kernels.rowcast`: one Triton kernel that gathers and casts the listed rows."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from glm5_mla.kernels import KV_LORA_RANK, ROPE_DIM, ROW

ROWS_PER_PROGRAM = 8
PROGRAMS_PER_SM = 8


@triton.jit
def _cast_rows(
    pool, indptr_end, indices, out,
    LORA: tl.constexpr, ROPE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    # How many rows are listed is read on the device: a captured launch serves whatever the lists hold at replay.
    count = tl.load(indptr_end)
    lora = tl.arange(0, LORA)
    rope = LORA + tl.arange(0, ROPE)
    for first in range(tl.program_id(0) * ROWS, count, tl.num_programs(0) * ROWS):
        listed = first + tl.arange(0, ROWS)
        valid = listed < count
        row = tl.load(indices + listed, mask=valid, other=0).to(tl.int64) * (LORA + ROPE)
        at = row[:, None] + lora[None, :]
        tl.store(out + at, tl.load(pool + at, mask=valid[:, None], other=0.0).to(tl.bfloat16), mask=valid[:, None])
        at = row[:, None] + rope[None, :]
        tl.store(out + at, tl.load(pool + at, mask=valid[:, None], other=0.0).to(tl.bfloat16), mask=valid[:, None])


def cast_rows(pool: torch.Tensor, kv_indptr: torch.Tensor, kv_indices: torch.Tensor, out: torch.Tensor) -> None:
    """Write the listed rows of `pool` [rows, 1, 576] e4m3 to the same rows of `out` [rows, 1, 576] bfloat16."""
    if pool.shape != out.shape or pool.shape[-1] != ROW or not (pool.is_contiguous() and out.is_contiguous()):
        raise ValueError(f"expected contiguous [rows, 1, {ROW}] of equal size, got {pool.shape} and {out.shape}")
    processors = torch.cuda.get_device_properties(pool.device).multi_processor_count
    _cast_rows[(processors * PROGRAMS_PER_SM,)](
        pool, kv_indptr[-1:], kv_indices, out,
        LORA=KV_LORA_RANK, ROPE=ROPE_DIM, ROWS=ROWS_PER_PROGRAM, num_warps=4,
    )  # fmt: skip
