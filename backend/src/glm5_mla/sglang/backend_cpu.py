"""The attention backend on a machine without a GPU: the same modes over the same pool, in plain torch.

It exists so that everything around the kernels (scheduling, timing, operation) runs as in production on any machine.
Its speeds say nothing about a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.models.deepseek_common import attention_backend_handler
from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import AttnForwardMethod

from glm5_mla.kernels import KV_LORA_RANK, ROPE_DIM, ROW
from glm5_mla.kernels.reference import ReferenceMlaDecode
from glm5_mla.kernels.rowcast import RowCast
from glm5_mla.refusal import Refusal
from glm5_mla.settings import KvCast, Settings
from glm5_mla.sglang.base import MlaBackend
from glm5_mla.sglang.queries import split_queries


class CpuMlaBackend(MlaBackend, AttentionBackend):
    """Absorbed MLA for every kind of forward: one row list and one query range per request."""

    def __init__(self, runner: Any, settings: Settings) -> None:
        AttentionBackend.__init__(self)
        if settings.kernel not in ("auto", "reference"):
            raise Refusal(
                "KernelUnavailable",
                f"GLM5_KERNEL is {settings.kernel}, but the server runs on a CPU, which has the kernel reference only.",
            )
        MlaBackend.__init__(self, runner, settings, kernel_name="reference")
        self._req_to_token = runner.req_to_token_pool.req_to_token
        self._kernel = ReferenceMlaDecode(torch.device("cpu"), 0)
        self._row_cast = RowCast(self.pool_rows, torch.device("cpu")) if self.kv_cast is KvCast.ACTIVE_ROWS else None
        self._qo_indptr = self._kv_indptr = self._kv_indices = torch.zeros(0, dtype=torch.int32)
        # Without a prefix SGLang would run a prefill unabsorbed, through kernels that a CPU build doesn't have.
        attention_backend_handler.AttentionBackendRegistry.register("flashinfer", _always_absorbed)

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Build the row lists of a batch; they serve all of its layers."""
        lengths = forward_batch.seq_lens.tolist()
        rows = [
            self._req_to_token[index, :length]
            for index, length in zip(forward_batch.req_pool_indices.tolist(), lengths, strict=True)
        ]
        if forward_batch.forward_mode.is_decode_or_idle():
            queries = [1] * len(lengths)
        else:
            queries = list(forward_batch.extend_seq_lens_cpu)
        self._kv_indices = torch.cat(rows) if rows else torch.zeros(0, dtype=torch.int32)
        self._kv_indptr = _indptr(lengths)
        self._qo_indptr = _indptr(queries)

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        """Return what SGLang pads sequence lengths with."""
        return 1

    def support_triton(self) -> bool:
        """Tell SGLang that no Triton kernel may be used on its behalf."""
        return False

    def forward_decode(self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, **options: Any) -> torch.Tensor:
        """One new token a request."""
        del v  # the latent is key and value at once
        return self._forward(q, k, layer, forward_batch, **options)

    def forward_extend(self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, **options: Any) -> torch.Tensor:
        """Prefill, with or without a cached prefix, whole or in chunks."""
        del v
        return self._forward(q, k, layer, forward_batch, **options)

    def _forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        q_rope: torch.Tensor | None = None,
        k_rope: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if k is not None and save_kv_cache:
            latent = k if k_rope is None else torch.cat([k.view(-1, KV_LORA_RANK), k_rope.view(-1, ROPE_DIM)], dim=-1)
            self.pool.set_kv_buffer(layer, KVWriteLoc.for_batch(forward_batch), latent.view(-1, 1, ROW), None)
        q_nope, q_rope = split_queries(q, q_rope, layer.tp_q_head_num)
        pool = self.pool.get_key_buffer(layer.layer_id)
        clock = self.watching(layer.layer_id)
        if clock:
            clock.mark_begin()
        if self.kv_cast is KvCast.WHOLE_POOL:
            pool = pool.to(q.dtype)
        elif self._row_cast:
            pool = self._row_cast(pool, self._kv_indptr, self._kv_indices)
        if clock and self.kv_cast is not KvCast.NEVER:
            clock.mark_cast()
        out = self._kernel(
            q_nope, q_rope, pool, self._qo_indptr, self._kv_indptr, self._kv_indices, sm_scale=layer.scaling
        )
        if clock:
            clock.mark_attention()
        return out.view(-1, layer.tp_q_head_num * KV_LORA_RANK)


def _indptr(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)


def _always_absorbed(attention: Any, forward_batch: Any) -> AttnForwardMethod:
    del attention, forward_batch
    return AttnForwardMethod.MLA
