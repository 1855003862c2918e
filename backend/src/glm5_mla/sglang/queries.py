"""The two forms in which SGLang hands absorbed queries to an attention backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glm5_mla.kernels import KV_LORA_RANK, ROPE_DIM, ROW

if TYPE_CHECKING:
    import torch


def split_queries(q: torch.Tensor, q_rope: torch.Tensor | None, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Give the queries as ([tokens, heads, 512], [tokens, heads, 64]); they come joined in `q`, or apart."""
    if q_rope is not None:
        return q.view(-1, heads, KV_LORA_RANK), q_rope.view(-1, heads, ROPE_DIM)
    joined = q.view(-1, heads, ROW)
    return joined[..., :KV_LORA_RANK], joined[..., KV_LORA_RANK:]
