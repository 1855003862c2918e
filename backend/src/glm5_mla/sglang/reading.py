"""How the pool is read on this GPU: which kernel, behind which cast; asked of the libraries, not assumed."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from glm5_mla import kernels
from glm5_mla.kernels import KV_LORA_RANK, ROPE_DIM, ROW
from glm5_mla.kernels.rowcast import RowCast
from glm5_mla.refusal import Refusal
from glm5_mla.settings import KvCast, Settings
from glm5_mla.sglang.base import BF16_ROW_BYTES

if TYPE_CHECKING:
    from glm5_mla.kernels import MlaDecode

logger = logging.getLogger(__name__)

# In mode Never, the first of these that can run here is taken.
AUTO_ORDER = ("cuda", "flashinfer", "triton")


class Cast(Protocol):
    """Gives the pool in the form that FlashInfer reads, with the same row numbers."""

    def __call__(self, pool: torch.Tensor, kv_indptr: torch.Tensor, kv_indices: torch.Tensor) -> torch.Tensor:
        """Return [rows, 1, 576]; only the listed rows need be valid."""
        ...


class Reading(NamedTuple):
    """How an attention backend reads the pool."""

    kernel_name: str
    kernel: MlaDecode | None
    """Our own decode kernel, which reads the pool as it is; None: FlashInfer decodes behind `cast`."""
    flashinfer_dtype: torch.dtype
    """What FlashInfer is planned for: everything but decode when there is a `kernel`."""
    cast: Cast


def choose_reading(settings: Settings, pool: torch.Tensor, heads: int) -> Reading:
    """Choose for a pool [rows, 1, 576] and this rank's query heads; raises `Refusal` when the mode can't be had."""
    if pool.dtype == torch.bfloat16:
        _only_flashinfer(settings, "a bfloat16 pool")
        return Reading("flashinfer", None, torch.bfloat16, _as_it_is)
    if settings.kv_cast is KvCast.WHOLE_POOL:
        _only_flashinfer(settings, "mode WholePool")
        return Reading("flashinfer", None, torch.bfloat16, _whole_pool)
    if settings.kv_cast is KvCast.ACTIVE_ROWS:
        _only_flashinfer(settings, "mode ActiveRows")
        return Reading("flashinfer", None, torch.bfloat16, _row_cast(pool.shape[0], pool.device))
    name, kernel = _choose_kernel(settings.kernel, pool.device, heads)
    reason = flashinfer_fp8_unavailable(pool.device, heads)
    if reason is None:
        return Reading(name, kernel, pool.dtype, _as_it_is)
    # Decode reads FP8 rows; a prefill onto a cached prefix casts the rows of that prefix, once a layer and chunk.
    logger.info("Prefill onto a cached prefix casts the rows in use: FlashInfer takes no FP8 pool here (%s).", reason)
    return Reading(name, kernel, torch.bfloat16, _row_cast(pool.shape[0], pool.device))


def cast_buffer_bytes(settings: Settings, pool_dtype: torch.dtype, device: torch.device, heads: int) -> int:
    """Count the bytes that `RowCast` keeps for each row of a pool; 0 where `choose_reading` makes none.

    `WholePool` has no buffer: it allocates as much for each layer anew, beside the pool that SGLang sizes without it.
    """
    if pool_dtype == torch.bfloat16 or settings.kv_cast is KvCast.WHOLE_POOL:
        return 0
    if settings.kv_cast is KvCast.NEVER and (device.type == "cpu" or flashinfer_fp8_unavailable(device, heads) is None):
        return 0
    return BF16_ROW_BYTES


def check_verification(reading: Reading, draft_tokens: int) -> None:
    """Refuse more draft tokens a request than are verified without a cast, where decode promises none.

    FlashInfer verifies what our kernel is too short for; where it takes no FP8 rows, each step would cast them.
    """
    kernel = reading.kernel
    if kernel is None or draft_tokens <= kernel.max_query_len or reading.flashinfer_dtype != torch.bfloat16:
        return
    raise Refusal(
        "UnsupportedSpeculation",
        f"Kernel {reading.kernel_name} verifies at most {kernel.max_query_len} draft tokens a request, and FlashInfer "
        f"takes no FP8 rows on this card: with {draft_tokens} each verification would cast the rows in use. Set "
        f"speculativeDecoding.draftTokens (--speculative-num-draft-tokens) to {kernel.max_query_len} or less, or "
        "attention.kvCast (GLM5_KV_CAST) to ActiveRows.",
    )


def _choose_kernel(asked: str, device: torch.device, heads: int) -> tuple[str, MlaDecode | None]:
    reasons = []
    for name in AUTO_ORDER if asked == "auto" else (asked,):
        reason = (
            flashinfer_fp8_unavailable(device, heads)
            if name == "flashinfer"
            else "it can't be captured in a CUDA graph"
            if name == "reference"
            else kernels.unavailable(name, device, heads)
        )
        if reason is None:
            return name, None if name == "flashinfer" else kernels.make(name, device, heads)
        reasons.append(f"{name}: {reason}")
    raise Refusal(
        "KernelUnavailable",
        f"No kernel can read an FP8 pool as it is on {torch.cuda.get_device_name(device)} ({'; '.join(reasons)}). "
        "Set attention.kvCast (GLM5_KV_CAST) to ActiveRows, which works on every card that FlashInfer supports.",
    )


def _only_flashinfer(settings: Settings, where: str) -> None:
    if settings.kernel not in ("auto", "flashinfer"):
        raise Refusal(
            "KernelUnavailable",
            f"GLM5_KERNEL is {settings.kernel}, but with {where} the rows are read in bfloat16 by FlashInfer; leave it "
            "at auto.",
        )


def _as_it_is(pool: torch.Tensor, kv_indptr: torch.Tensor, kv_indices: torch.Tensor) -> torch.Tensor:
    del kv_indptr, kv_indices
    return pool


def _whole_pool(pool: torch.Tensor, kv_indptr: torch.Tensor, kv_indices: torch.Tensor) -> torch.Tensor:
    """Do what SGLang ships."""
    del kv_indptr, kv_indices
    return pool.to(torch.bfloat16)


@functools.lru_cache(maxsize=1)
def _row_cast(rows: int, device: torch.device) -> RowCast:
    """Make the one buffer of a process: a draft model's pool has as many rows as its target's."""
    return RowCast(rows, device)


@functools.lru_cache(maxsize=1)
def flashinfer_fp8_unavailable(device: torch.device, heads: int) -> str | None:
    """Ask FlashInfer to plan and run a tiny FP8 case; tells why it can't, None when it can.

    The first time on a machine this may compile for a minute or two, unless the module was built into the image.
    """
    try:
        flashinfer_fp8_attend(
            torch.zeros((1, heads, KV_LORA_RANK), dtype=torch.bfloat16, device=device),
            torch.zeros((1, heads, ROPE_DIM), dtype=torch.bfloat16, device=device),
            torch.zeros((2, 1, ROW), dtype=torch.uint8, device=device).view(torch.float8_e4m3fn),
            torch.tensor([0, 1], dtype=torch.int32, device=device),
            torch.tensor([0, 2], dtype=torch.int32, device=device),
            torch.tensor([0, 1], dtype=torch.int32, device=device),
            sm_scale=1.0,
        )
        torch.cuda.synchronize(device)
    except Exception as error:  # whatever the library says about this card, or about its compiler
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
    return None


def flashinfer_fp8_attend(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    pool: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    sm_scale: float,
) -> torch.Tensor:
    """Attend by FlashInfer's FP8 path, planned for this one call; shapes as in `glm5_mla.kernels.MlaDecode`."""
    from flashinfer.mla import BatchMLAPagedAttentionWrapper

    heads = q_nope.shape[1]
    wrapper = BatchMLAPagedAttentionWrapper(torch.empty(128 << 20, dtype=torch.uint8, device=pool.device))
    wrapper.plan(
        qo_indptr=qo_indptr,
        kv_indptr=kv_indptr,
        kv_indices=kv_indices,
        kv_len_arr=kv_indptr[1:] - kv_indptr[:-1],
        num_heads=heads,
        head_dim_ckv=KV_LORA_RANK,
        head_dim_kpe=ROPE_DIM,
        page_size=1,
        causal=True,
        sm_scale=sm_scale,
        q_data_type=q_nope.dtype,
        kv_data_type=pool.dtype,
    )
    out: torch.Tensor = wrapper.run(
        q_nope, q_rope, pool[:, :, :KV_LORA_RANK], pool[:, :, KV_LORA_RANK:], ckv_scale=1.0, kpe_scale=1.0
    )
    return out
