"""MLA attention over the rows of a paged latent KV pool: one interface, several kernels.

A pool row is one token's latent of a layer: 512 values (`KV_LORA_RANK`, keys and values at once) and 64 rotary values
(`ROPE_DIM`, keys only). With absorbed projections every head attends to the same rows:

    scores = (q_nope . row[:512] + q_rope . row[512:]) * sm_scale * kv_scale
    out    = softmax(scores) . row[:512] * kv_scale
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

KV_LORA_RANK = 512
ROPE_DIM = 64
ROW = KV_LORA_RANK + ROPE_DIM

# What GLM5_KERNEL can name. "flashinfer" is SGLang's own library with the pool's FP8 rows passed as they are; it plans
# on the host and is therefore driven by the attention backend itself, not through `MlaDecode`.
NAMES = ("auto", "reference", "triton", "cuda", "flashinfer")


class MlaDecode(Protocol):
    """A kernel, ready for one device and head count. It may own workspace made at construction.

    Except for `reference`, a call reads nothing on the host and allocates only `out`: it can be captured in a CUDA
    graph and replayed while the contents of every tensor argument change.
    """

    name: str
    max_query_len: int
    """Largest number of query tokens one request may bring in a call."""

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
        """Attend each request's query tokens to its rows.

        Returns `out`. Query i of the n that a request brings sees its rows up to len - n + i: the newest tokens are
        already in the pool.

        Args:
            q_nope: [tokens, heads, 512] bfloat16, last dimension contiguous, the others of any stride.
            q_rope: [tokens, heads, 64], like `q_nope`.
            pool: [rows, 1, 576] float8_e4m3fn (`reference` also takes bfloat16). Rows outside the lists are never used,
                whatever they hold.
            qo_indptr: [requests + 1] int32; request b owns tokens qo_indptr[b] to qo_indptr[b + 1].
            kv_indptr: [requests + 1] int32; request b owns kv_indices[kv_indptr[b] : kv_indptr[b + 1]].
            kv_indices: [>= kv_indptr[-1]] int32 row numbers in the order of the sequence.
            sm_scale: factor on the scores.
            kv_scale: per-tensor scale of the pool; SGLang's MLA pool is an unscaled cast, hence 1.0.
            max_q_len: upper bound, known on the host, of a request's query tokens.
            out: [tokens, heads, 512] bfloat16 to write to; made when None.
            lse: [tokens, heads] float32; receives the natural logarithm of the softmax denominators when given.

        """
        ...


class KernelUnavailable(RuntimeError):
    """A kernel can't run on this device or shape; the text says why in words for an operator of the server."""


# Own kernels by name: module and class. A class has `unavailable(device, heads) -> str | None` (None: it can run) and
# is made by `Class(device, heads)`. A module may import torch and a compiler, so it is imported when asked for.
_KERNELS = {
    "reference": ("glm5_mla.kernels.reference", "ReferenceMlaDecode"),
    "triton": ("glm5_mla.kernels.triton", "TritonMlaDecode"),
    "cuda": ("glm5_mla.kernels.cuda", "CudaMlaDecode"),
}


def unavailable(name: str, device: torch.device, heads: int) -> str | None:
    """Tell why kernel `name` can't run on `device` with `heads` query heads; None when it can."""
    module, attribute = _KERNELS[name]
    try:
        reason: str | None = getattr(importlib.import_module(module), attribute).unavailable(device, heads)
    except ImportError as error:
        return f"its module can't be imported here: {error}"
    return reason


def make(name: str, device: torch.device, heads: int) -> MlaDecode:
    """Make kernel `name` for `device` and `heads` query heads; raises `KernelUnavailable` when it can't run there."""
    reason = unavailable(name, device, heads)
    if reason is not None:
        raise KernelUnavailable(f"kernel {name} is not available: {reason}")
    module, attribute = _KERNELS[name]
    kernel: MlaDecode = getattr(importlib.import_module(module), attribute)(device, heads)
    return kernel
