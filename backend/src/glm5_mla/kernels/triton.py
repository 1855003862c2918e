"""Kernel `triton`: MLA decode over FP8 rows for any card that Triton can compile e4m3 loads for (SM89 and newer).

The portable fallback: two launches a layer and padded tiles (16 columns at least), so slower than `cuda`.

Split-KV in two launches. `_partial`: one program per block of columns (query token, head), request and split walks its
share of the request's rows with an online softmax and writes float32 partials. `_combine`: one program per query token
and head merges them. The number of splits is chosen from the batch size alone; where they begin is decided on the
device, so both can be captured in a CUDA graph.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from glm5_mla.kernels import KV_LORA_RANK, ROPE_DIM

MOST_SPLITS = 64
CAPABILITY = (8, 9)  # the first with e4m3 conversions
BLOCK_COLUMNS = 16  # the least that Triton's dot takes
BLOCK_ROWS = 32
WEIGHT_BITS = 11  # the largest weight is 2^11: float16 then keeps in full what is 2^-25 of it


@triton.jit
def _partial(
    q_nope, q_rope, pool, qo_indptr, kv_indptr, kv_indices, partial, partial_m, partial_l,
    q_nope_token, q_nope_head, q_rope_token, q_rope_head, row_stride, score_scale,
    heads: tl.constexpr, splits: tl.constexpr, LATENT: tl.constexpr, ROPE: tl.constexpr,
    COLUMNS: tl.constexpr, ROWS: tl.constexpr, WEIGHT_BITS: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    request = tl.program_id(1)
    split = tl.program_id(2)
    token0 = tl.load(qo_indptr + request)
    tokens = tl.load(qo_indptr + request + 1) - token0
    begin = tl.load(kv_indptr + request)
    length = tl.load(kv_indptr + request + 1) - begin
    if block * COLUMNS >= tokens * heads:
        return
    share = tl.cdiv(tl.cdiv(length, splits), ROWS) * ROWS
    first = split * share
    last = tl.minimum(first + share, length)

    column = block * COLUMNS + tl.arange(0, COLUMNS)
    used = column < tokens * heads
    token = token0 + column // heads
    head = column % heads
    latent = tl.arange(0, LATENT)
    rope = tl.arange(0, ROPE)
    q_n = tl.load(
        q_nope + (token.to(tl.int64) * q_nope_token + head * q_nope_head)[:, None] + latent[None, :],
        mask=used[:, None], other=0.0,
    )  # fmt: skip
    q_r = tl.load(
        q_rope + (token.to(tl.int64) * q_rope_token + head * q_rope_head)[:, None] + rope[None, :],
        mask=used[:, None], other=0.0,
    )  # fmt: skip
    visible = length - tokens + 1 + column // heads

    m = tl.full((COLUMNS,), -float("inf"), tl.float32)  # weights are 2^(score - m)
    denominator = tl.zeros((COLUMNS,), tl.float32)
    acc = tl.zeros((COLUMNS, LATENT), tl.float32)
    for start in range(first, last, ROWS):
        position = start + tl.arange(0, ROWS)
        row = tl.load(kv_indices + begin + position, mask=position < last, other=0).to(tl.int64)
        # Rows past the end are zero, not whatever the pool holds: 0 times NaN would reach the sums.
        here = (position < last)[:, None]
        k_n = tl.load(pool + row[:, None] * row_stride + latent[None, :], mask=here, other=0.0).to(tl.bfloat16)
        k_r = tl.load(pool + row[:, None] * row_stride + LATENT + rope[None, :], mask=here, other=0.0).to(tl.bfloat16)
        scores = tl.dot(q_n, tl.trans(k_n))
        scores = (scores + tl.dot(q_r, tl.trans(k_r))) * score_scale
        shown = (position[None, :] < visible[:, None]) & (position < last)[None, :]
        scores = tl.where(shown, scores, -float("inf"))
        top = tl.maximum(m, tl.max(scores, 1) - WEIGHT_BITS)
        base = tl.where(top == -float("inf"), 0.0, top)
        p = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(m - base)
        denominator = denominator * shrink + tl.sum(p, 1)
        # e4m3 is exact in float16, weights are rounded to its 11 bits.
        acc = acc * shrink[:, None] + tl.dot(p.to(tl.float16), k_n.to(tl.float16))
        m = top
    slot = ((token * heads + head) * splits + split).to(tl.int64)
    tl.store(partial + slot[:, None] * LATENT + latent[None, :], acc, mask=used[:, None])
    tl.store(partial_m + slot, m, mask=used)
    tl.store(partial_l + slot, denominator, mask=used)


@triton.jit
def _combine(
    partial, partial_m, partial_l, out, lse, out_scale,
    splits: tl.constexpr, LATENT: tl.constexpr, HAS_LSE: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0).to(tl.int64)
    latent = tl.arange(0, LATENT)
    each = tl.arange(0, splits)
    m = tl.load(partial_m + column * splits + each)
    top = tl.max(m, 0)
    base = tl.where(top == -float("inf"), 0.0, top)
    denominator = tl.sum(tl.exp2(m - base) * tl.load(partial_l + column * splits + each), 0)
    acc = tl.zeros((LATENT,), tl.float32)
    for split in range(splits):
        weight = tl.exp2(tl.load(partial_m + column * splits + split) - base)
        acc += weight * tl.load(partial + (column * splits + split) * LATENT + latent)
    result = tl.where(denominator == 0.0, 0.0, acc * (out_scale / denominator))  # no row seen: zero
    tl.store(out + column * LATENT + latent, result.to(tl.bfloat16))
    if HAS_LSE:
        tl.store(lse + column, (base + tl.log2(denominator)) * 0.6931471805599453)


class TritonMlaDecode:
    """MLA decode in Triton. Its calls share a workspace, which grows: calls on two streams must not overlap."""

    name = "triton"
    max_query_len = 8

    @staticmethod
    def unavailable(device: torch.device, heads: int) -> str | None:
        """Tell why the kernel can't run on `device` with `heads` query heads; None when it can."""
        if device.type != "cuda":
            return f"it needs an NVIDIA GPU, the device is {device.type}"
        capability = torch.cuda.get_device_capability(device)
        if capability < CAPABILITY:
            return f"it needs e4m3 conversions, which begin with SM89; this card is SM{capability[0]}{capability[1]}"
        if heads < 1:
            return f"it needs at least one query head, not {heads}"
        return None

    def __init__(self, device: torch.device, heads: int) -> None:
        self._device = device
        self._heads = heads
        self._sms = torch.cuda.get_device_properties(device).multi_processor_count
        # A captured graph goes on using the workspace that it was captured with: an outgrown one is kept.
        self._workspaces = [torch.empty(0, dtype=torch.float32, device=device)]

    def splits(self, batch: int, blocks: int) -> int:
        """Choose the splits of a request: two programs an SM over the whole batch; a power of two."""
        wanted = 2 * self._sms / max(batch * blocks, 1)
        return 1 << max(0, min(math.ceil(math.log2(max(wanted, 1))), MOST_SPLITS.bit_length() - 1))

    def __call__(
        self,
        q_nope: torch.Tensor,
        q_rope: torch.Tensor,
        pool: torch.Tensor,
        qo_indptr: torch.Tensor,
        kv_indptr: torch.Tensor,
        kv_indices: torch.Tensor,
        sm_scale: float,
        kv_scale: float = 1.0,
        max_q_len: int = 1,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attend each request's query tokens to its rows; see `MlaDecode`. Raises `ValueError` on bad input."""
        if pool.dtype != torch.float8_e4m3fn:
            raise ValueError(f"pool must be float8_e4m3fn, not {pool.dtype}")
        if out is None:
            out = torch.empty(q_nope.shape, dtype=torch.bfloat16, device=q_nope.device)
        if not out.is_contiguous() or (lse is not None and not lse.is_contiguous()):
            raise ValueError("out and lse must be contiguous")
        batch, columns = kv_indptr.shape[0] - 1, q_nope.shape[0] * self._heads
        if batch == 0:
            return out
        blocks = -(-max_q_len * self._heads // BLOCK_COLUMNS)
        splits = self.splits(batch, blocks)
        size = columns * splits * (KV_LORA_RANK + 2)
        if self._workspaces[-1].numel() < size:
            # Twice what is needed, so that all of them together stay below twice the last.
            self._workspaces.append(torch.empty(2 * size, dtype=torch.float32, device=self._device))
        partial, partial_m, partial_l = self._workspaces[-1][:size].split(
            [columns * splits * KV_LORA_RANK, columns * splits, columns * splits]
        )
        _partial[(blocks, batch, splits)](
            q_nope, q_rope, pool, qo_indptr, kv_indptr, kv_indices, partial, partial_m, partial_l,
            q_nope.stride(0), q_nope.stride(1), q_rope.stride(0), q_rope.stride(1), pool.stride(0),
            sm_scale * kv_scale * math.log2(math.e),
            heads=self._heads, splits=splits, LATENT=KV_LORA_RANK, ROPE=ROPE_DIM,
            COLUMNS=BLOCK_COLUMNS, ROWS=BLOCK_ROWS, WEIGHT_BITS=WEIGHT_BITS, num_warps=4, num_stages=2,
        )  # fmt: skip
        _combine[(columns,)](
            partial, partial_m, partial_l, out, out if lse is None else lse, kv_scale,
            splits=splits, LATENT=KV_LORA_RANK, HAS_LSE=lse is not None, num_warps=4,
        )  # fmt: skip
        return out
