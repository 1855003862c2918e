"""The attention backend on a GPU: SGLang's FlashInfer MLA backend, except for how it reads the pool.

SGLang's own bookkeeping stays in charge: it builds the row lists, owns the buffers that CUDA graphs are bound to and
keeps the MHA paths of prefill, which read no pool row or cast just the rows they fetch. Two things are ours. Between
its index updaters and FlashInfer's wrappers stands a `_Plan`, which keeps the row lists and plans with the dtype that
is really read; and `forward_decode` and the paged part of `forward_extend`, which cast the whole pool in SGLang, attend
in the way that the mode says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from sglang.srt.layers.attention.flashinfer_mla_backend import (
    FlashInferMLAAttnBackend,
    FlashInferMLAIndicesUpdaterDecode,
    FlashInferMLAIndicesUpdaterPrefill,
)
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.runtime_context import get_parallel, get_spec

from glm5_mla import selftest
from glm5_mla.kernels import KV_LORA_RANK
from glm5_mla.refusal import Refusal
from glm5_mla.settings import KvCast, Settings
from glm5_mla.sglang.base import MlaBackend
from glm5_mla.sglang.queries import split_queries
from glm5_mla.sglang.reading import Reading, check_verification, choose_reading

if TYPE_CHECKING:
    from glm5_mla.kernels import MlaDecode


def make_cuda_backend(runner: Any, settings: Settings) -> CudaMlaBackend:
    """Make the backend of a model runner, after a numerical test of what it will read with; raises `Refusal`."""
    reading = _reading_of(runner, settings)
    if not runner.is_draft_worker:
        selftest.check(reading, _local_heads(runner), torch.device(runner.device))
    return CudaMlaBackend(runner, settings, reading)


def replace_draft_steps(draft: Any, runner: Any, settings: Settings) -> None:
    """Give SGLang's multi-step draft backend our backends for its steps, bound to the same buffers."""
    reading = _reading_of(runner, settings)
    for step in range(len(draft.attn_backends)):
        draft.attn_backends[step] = CudaMlaBackend(
            runner,
            settings,
            reading,
            skip_prefill=True,
            kv_indptr_buf=draft.kv_indptr[step],
            q_indptr_decode_buf=draft.q_indptr_decode,
        )


def _local_heads(runner: Any) -> int:
    return int(runner.model_config.num_attention_heads // get_parallel().attn_tp_size)


def _reading_of(runner: Any, settings: Settings) -> Reading:
    if get_parallel().dcp_enabled:
        raise Refusal(
            "UnsupportedParallelism",
            "Decode context parallelism (--dcp-size) is not supported by this backend; leave it at 1.",
        )
    if runner.dtype != torch.bfloat16:
        raise Refusal("UnsupportedModel", f"The model computes in {runner.dtype}; serve it with --dtype bfloat16.")
    pool = runner.token_to_kv_pool.get_key_buffer(runner.token_to_kv_pool.start_layer)
    reading = choose_reading(settings, pool, _local_heads(runner))
    if reading.kernel is not None and get_spec().speculative_algorithm == "DFLASH":
        raise Refusal(
            "UnsupportedSpeculation",
            "Speculative algorithm DFLASH plans FlashInfer by itself; set GLM5_KERNEL=flashinfer to use it.",
        )
    check_verification(reading, get_spec().speculative_num_draft_tokens or 1)
    return reading


class _Rows(NamedTuple):
    """A plan's row lists, in device memory; under a CUDA graph the buffers that it is bound to."""

    qo_indptr: torch.Tensor
    kv_indptr: torch.Tensor
    kv_indices: torch.Tensor


class _Plan:
    """Stands in for a FlashInfer wrapper while SGLang plans it: keeps the row lists, corrects the pool's dtype.

    `kv_dtype` None: the wrapper will not run, so it isn't planned (nor is the host made to wait for a plan).
    """

    def __init__(
        self,
        wrapper: Any,
        kv_dtype: torch.dtype | None,
        lists: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> None:
        self._wrapper = wrapper
        self._kv_dtype = kv_dtype
        self._lists = lists

    def plan(
        self,
        qo_indptr: torch.Tensor,
        kv_indptr: torch.Tensor,
        kv_indices: torch.Tensor,
        kv_len_arr: torch.Tensor,
        *rest: Any,
    ) -> None:
        """Take what `BatchMLAPagedAttentionWrapper.plan` takes; the pool's dtype comes last."""
        wrapper = self._wrapper
        if self._kv_dtype is not None:
            wrapper.plan(qo_indptr, kv_indptr, kv_indices, kv_len_arr, *rest[:-1], self._kv_dtype)
        if self._lists is not None:  # decode: SGLang updates these buffers in place, also before a replay
            wrapper.glm5_rows = _Rows(*self._lists, kv_indices)
        elif wrapper._use_cuda_graph:
            if self._kv_dtype is None:  # else the plan has done it
                wrapper._qo_indptr_buf.copy_(qo_indptr, non_blocking=True)
                wrapper._kv_indptr_buf.copy_(kv_indptr, non_blocking=True)
                wrapper._kv_indices_buf[: len(kv_indices)].copy_(kv_indices, non_blocking=True)
            wrapper.glm5_rows = _Rows(wrapper._qo_indptr_buf, wrapper._kv_indptr_buf, wrapper._kv_indices_buf)
        else:
            device = kv_indices.device
            wrapper.glm5_rows = _Rows(
                qo_indptr.to(device, non_blocking=True), kv_indptr.to(device, non_blocking=True), kv_indices
            )


class _DecodeUpdater(FlashInferMLAIndicesUpdaterDecode):
    def call_begin_forward(
        self,
        wrapper: Any,
        paged_kernel_lens: torch.Tensor,
        paged_kernel_lens_sum: int,
        q_indptr: torch.Tensor,
        kv_indptr: torch.Tensor,
        init_metadata_replay: bool = False,
        spec_info: Any = None,
        **rest: Any,
    ) -> None:
        requests = len(paged_kernel_lens)
        filled = kv_indptr if spec_info is None else spec_info.kv_indptr
        plan = _Plan(wrapper, self.attn_backend.decode_plan_dtype, (q_indptr[: requests + 1], filled[: requests + 1]))
        super().call_begin_forward(
            plan,
            paged_kernel_lens,
            paged_kernel_lens_sum,
            q_indptr,
            kv_indptr,
            init_metadata_replay,
            spec_info,
            **rest,
        )


class _PrefillUpdater(FlashInferMLAIndicesUpdaterPrefill):
    def call_begin_forward(
        self,
        wrapper_ragged: Any,
        wrapper_paged: Any,
        req_pool_indices: torch.Tensor,
        paged_kernel_lens: torch.Tensor,
        paged_kernel_lens_sum: int,
        seq_lens: torch.Tensor,
        prefix_lens: torch.Tensor,
        kv_indptr: torch.Tensor,
        qo_indptr: torch.Tensor,
        use_ragged: bool,
        spec_info: Any = None,
        **rest: Any,
    ) -> None:
        # Only the verification of draft tokens comes with spec_info.
        verifies = spec_info is not None
        backend = self.attn_backend
        plan = _Plan(wrapper_paged, backend.verify_plan_dtype if verifies else backend.extend_plan_dtype)
        super().call_begin_forward(
            wrapper_ragged,
            wrapper_paged if rest.get("fast_verify_plan_kwargs") is not None else plan,
            req_pool_indices,
            paged_kernel_lens,
            paged_kernel_lens_sum,
            seq_lens,
            prefix_lens,
            kv_indptr,
            qo_indptr,
            use_ragged,
            spec_info,
            **rest,
        )


class CudaMlaBackend(MlaBackend, FlashInferMLAAttnBackend):
    """SGLang's FlashInfer MLA backend with the pool read as `Reading` says."""

    def __init__(
        self,
        runner: Any,
        settings: Settings,
        reading: Reading,
        skip_prefill: bool = False,
        kv_indptr_buf: torch.Tensor | None = None,
        q_indptr_decode_buf: torch.Tensor | None = None,
    ) -> None:
        FlashInferMLAAttnBackend.__init__(self, runner, skip_prefill, kv_indptr_buf, q_indptr_decode_buf)
        MlaBackend.__init__(self, runner, settings, kernel_name=reading.kernel_name)
        self._reading = reading
        draft_tokens = get_spec().speculative_num_draft_tokens or 1
        kernel = reading.kernel
        self._decode_kernel = kernel
        self._verify_kernel = kernel if kernel is not None and kernel.max_query_len >= draft_tokens else None
        # Our kernels take the same number of tokens from every request of a verification.
        self.supports_ragged_verify_graph = self._verify_kernel is None
        self.extend_plan_dtype = reading.flashinfer_dtype
        self.decode_plan_dtype = None if self._decode_kernel is not None else reading.flashinfer_dtype
        self.verify_plan_dtype = None if self._verify_kernel is not None else reading.flashinfer_dtype
        self.indices_updater_decode = _DecodeUpdater(runner, self)
        if not skip_prefill:
            self.indices_updater_prefill = _PrefillUpdater(runner, self)

    def forward_decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        q_rope: torch.Tensor | None = None,
        k_rope: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """One new token a request, eager or captured."""
        if k is not None and save_kv_cache:
            self._write(layer, forward_batch, k, v, k_rope)
        return self._attend(q, q_rope, layer, self.forward_metadata.decode_wrapper, self._decode_kernel)

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        q_rope: torch.Tensor | None = None,
        k_rope: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Prefill and verification; what SGLang attends to without reading the pool is left to SGLang."""
        attends_fetched_prefix = forward_batch.attn_attend_prefix_cache is not None and any(
            forward_batch.extend_prefix_lens_cpu
        )
        if attends_fetched_prefix or self.forward_metadata.use_ragged:
            out: torch.Tensor = FlashInferMLAAttnBackend.forward_extend(
                self, q, k, v, layer, forward_batch, save_kv_cache, q_rope, k_rope
            )
            return out
        if k is not None and save_kv_cache:
            self._write(layer, forward_batch, k, v, k_rope)
        kernel = self._verify_kernel if forward_batch.forward_mode.is_target_verify() else None
        return self._attend(q, q_rope, layer, self.forward_metadata.prefill_wrapper, kernel)

    def _write(
        self, layer: Any, forward_batch: Any, k: torch.Tensor, v: torch.Tensor | None, k_rope: torch.Tensor | None
    ) -> None:
        location = KVWriteLoc.for_batch(forward_batch)
        if k_rope is not None:
            self.token_to_kv_pool.set_mla_kv_buffer(layer, location, k, k_rope)
        else:
            self.token_to_kv_pool.set_kv_buffer(layer, location, k, v)

    def _attend(
        self,
        q: torch.Tensor,
        q_rope: torch.Tensor | None,
        layer: Any,
        wrapper: Any,
        kernel: MlaDecode | None,
    ) -> torch.Tensor:
        heads = layer.tp_q_head_num
        q_nope, q_rope = split_queries(q, q_rope, heads)
        pool = self.token_to_kv_pool.get_key_buffer(layer.layer_id)
        rows: _Rows = wrapper.glm5_rows
        out = torch.empty_like(q_nope, memory_format=torch.contiguous_format)
        clock = self.watching(layer.layer_id)
        if clock:
            clock.mark_begin()
        if kernel is not None:
            tokens, requests = q_nope.shape[0], rows.qo_indptr.shape[0] - 1
            kernel(
                q_nope,
                q_rope,
                pool,
                rows.qo_indptr,
                rows.kv_indptr,
                rows.kv_indices,
                sm_scale=layer.scaling,
                max_q_len=tokens // requests,
                out=out,
            )
        else:
            pool = self._reading.cast(pool, rows.kv_indptr, rows.kv_indices)
            if clock and self.kv_cast is not KvCast.NEVER:
                clock.mark_cast()
            # FlashInfer wants scales with an FP8 pool; SGLang writes its MLA pool unscaled.
            scales = {"ckv_scale": 1.0, "kpe_scale": 1.0} if pool.dtype == torch.float8_e4m3fn else {}
            wrapper.run(
                q_nope,
                q_rope,
                pool[:, :, :KV_LORA_RANK],
                pool[:, :, KV_LORA_RANK:],
                out=out,
                return_lse=False,
                **scales,
            )
        if clock:
            clock.mark_attention()
        return out.view(-1, heads * KV_LORA_RANK)
