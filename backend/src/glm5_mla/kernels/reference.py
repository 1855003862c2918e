"""The MLA kernel that the others are compared with: plain torch, float32 arithmetic, any device.

Rows are converted tile by tile, so an FP8 pool is never held in a wider form: the cost of reading is the attention's.
The row lists are read on the host, so it can't be captured in a CUDA graph.
"""

from __future__ import annotations

import torch

from glm5_mla.kernels import KV_LORA_RANK

TILE_ROWS = 2048


class ReferenceMlaDecode:
    """`MlaDecode` in torch with float32 accumulation (online softmax over tiles of `TILE_ROWS` rows)."""

    name = "reference"
    max_query_len = 1 << 30

    def __init__(self, device: torch.device, heads: int) -> None:
        del device, heads  # runs anywhere, with any number of heads

    @staticmethod
    def unavailable(device: torch.device, heads: int) -> str | None:
        """Never: torch runs everywhere."""
        del device, heads
        return None

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
        """See `glm5_mla.kernels.MlaDecode`."""
        del max_q_len
        if out is None:
            out = torch.empty(q_nope.shape, dtype=q_nope.dtype, device=q_nope.device)
        q = torch.cat([q_nope, q_rope], dim=-1).float() * (sm_scale * kv_scale)
        queries, rows = qo_indptr.tolist(), kv_indptr.tolist()
        for b in range(len(queries) - 1):
            first, last = queries[b], queries[b + 1]
            if first == last:
                continue
            values, log_sum = _attend(q[first:last], pool, kv_indices[rows[b] : rows[b + 1]])
            out[first:last] = (values * kv_scale).to(out.dtype)
            if lse is not None:
                lse[first:last] = log_sum
        return out


def _attend(q: torch.Tensor, pool: torch.Tensor, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One request: q [n, heads, 576] float32, already scaled, over `indices`; gives ([n, heads, 512], [n, heads])."""
    n, heads, _ = q.shape
    length = indices.numel()
    flat = q.reshape(n * heads, -1)
    top = torch.full((n * heads, 1), float("-inf"), device=q.device)
    total = torch.zeros((n * heads, 1), device=q.device)
    values = torch.zeros((n * heads, KV_LORA_RANK), device=q.device)
    last_visible = torch.arange(length - n, length, device=q.device).repeat_interleave(heads)[:, None]
    for start in range(0, length, TILE_ROWS):
        tile = _rows(pool, indices[start : start + TILE_ROWS])
        scores = flat @ tile.T
        if start + tile.shape[0] > length - n + 1:
            position = torch.arange(start, start + tile.shape[0], device=q.device)
            scores.masked_fill_(position[None, :] > last_visible, float("-inf"))
        new_top = torch.maximum(top, scores.amax(dim=1, keepdim=True))
        shift = torch.nan_to_num(new_top, neginf=0.0)  # a query that has seen no row yet
        weights = torch.exp(scores - shift)
        keep = torch.exp(top - shift)
        total = total * keep + weights.sum(dim=1, keepdim=True)
        values = values * keep + weights @ tile[:, :KV_LORA_RANK]
        top = new_top
    out = torch.where(total > 0, values / total, torch.zeros_like(values))
    return out.view(n, heads, KV_LORA_RANK), (top + torch.log(total)).view(n, heads)


def _rows(pool: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Gather the listed rows as [len, 576] float32; one-byte types as bytes, which torch can index on every device."""
    rows = pool[:, 0]
    if rows.element_size() == 1:
        return rows.view(torch.uint8)[indices.long()].view(pool.dtype).float()
    return rows[indices.long()].float()
