"""Kernel `cuda`: our own MLA decode over FP8 rows, compiled ahead of time (`native/mla_decode.cu`)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from glm5_mla.kernels import KV_LORA_RANK, ROPE_DIM, ROW
from glm5_mla.kernels.native import library

HEADS = (8, 16, 32, 64, 128)
CAPABILITIES = ((9, 0), (12, 0))  # what the library holds code for


@dataclass(frozen=True)
class Cut:
    """How the batch's rows are cut into ranges for the GPU's thread blocks; 0 takes the library's default."""

    ctas: int = 0
    """Thread blocks in the grid, one an SM at most."""
    min_portion: int = 0
    """Least cost of a block's range: its rows plus `segment_cost` for each request; not below `align`."""
    segment_cost: int = 0
    """What a further request costs a block, in rows; half of it lies on either side of its rows."""
    align: int = 0
    """Cuts inside a request fall on multiples of this many rows; a power of two."""
    min_segment: int = 0
    """Least rows before a cut inside a request, and behind it but for `align` / 2; a multiple of `align`."""


class CudaMlaDecode:
    """MLA decode on an SM90 or SM120 card, rows read as e4m3.

    Owns one workspace: calls on different streams must not overlap.
    """

    name = "cuda"
    max_query_len = 8

    @staticmethod
    def unavailable(device: torch.device, heads: int) -> str | None:
        """Tell why the kernel can't run on `device` with `heads` query heads; None when it can."""
        if device.type != "cuda":
            return f"it needs an NVIDIA GPU, the device is {device.type}"
        capability = torch.cuda.get_device_capability(device)
        if capability not in CAPABILITIES:
            built = " and ".join(f"SM{major}{minor}" for major, minor in CAPABILITIES)
            return f"it is built for {built}, this card is SM{capability[0]}{capability[1]}"
        if heads not in HEADS:
            return f"it takes {', '.join(map(str, HEADS))} query heads a GPU, not {heads}"
        try:
            library.load()
        except OSError as error:
            return f"its library can't be loaded: {error}"
        return None

    def __init__(self, device: torch.device, heads: int, cut: Cut | None = None) -> None:
        self._library = library.load()
        self._device = device
        self._heads = heads
        self._cut = cut or Cut()
        with torch.cuda.device(device):
            size = self._library.prepare(heads, self.max_query_len)
        # All ones: every piece of a partial result is empty. Every call leaves all pieces empty.
        self._workspace = torch.full((size,), 0xFF, dtype=torch.uint8, device=device)

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
        tokens = q_nope.shape[0]
        _check("q_nope", q_nope, torch.bfloat16, (tokens, self._heads, KV_LORA_RANK))
        _check("q_rope", q_rope, torch.bfloat16, (tokens, self._heads, ROPE_DIM))
        _check("pool", pool, torch.float8_e4m3fn, (pool.shape[0], 1, ROW))
        for name, ints in (("qo_indptr", qo_indptr), ("kv_indptr", kv_indptr), ("kv_indices", kv_indices)):
            if ints.dtype != torch.int32 or not ints.is_contiguous():
                raise ValueError(
                    f"{name} must be a contiguous int32 tensor, not {ints.dtype} of strides {ints.stride()}"
                )
        if max_q_len > self.max_query_len:
            raise ValueError(
                f"max_q_len is {max_q_len}, the kernel takes at most {self.max_query_len} query tokens a request"
            )
        if out is None:
            out = torch.empty((tokens, self._heads, KV_LORA_RANK), dtype=torch.bfloat16, device=q_nope.device)
        elif out.dtype != torch.bfloat16 or out.shape != q_nope.shape or not out.is_contiguous():
            raise ValueError(f"out must be contiguous bfloat16 of shape {tuple(q_nope.shape)}")
        if lse is not None and (lse.dtype != torch.float32 or lse.shape != q_nope.shape[:2] or not lse.is_contiguous()):
            raise ValueError(f"lse must be contiguous float32 of shape {tuple(q_nope.shape[:2])}")
        args = library.Args(
            q_nope=q_nope.data_ptr(),
            q_rope=q_rope.data_ptr(),
            pool=pool.data_ptr(),
            qo_indptr=qo_indptr.data_ptr(),
            kv_indptr=kv_indptr.data_ptr(),
            kv_indices=kv_indices.data_ptr(),
            out=out.data_ptr(),
            lse=None if lse is None else lse.data_ptr(),
            workspace=self._workspace.data_ptr(),
            q_nope_token_stride=q_nope.stride(0),
            q_nope_head_stride=q_nope.stride(1),
            q_rope_token_stride=q_rope.stride(0),
            q_rope_head_stride=q_rope.stride(1),
            row_stride=pool.stride(0),
            batch=kv_indptr.shape[0] - 1,
            heads=self._heads,
            max_q_len=max_q_len,
            score_scale=sm_scale * kv_scale * math.log2(math.e),
            out_scale=kv_scale,
            ctas=self._cut.ctas,
            min_portion=self._cut.min_portion,
            segment_cost=self._cut.segment_cost,
            align=self._cut.align,
            min_segment=self._cut.min_segment,
        )
        self._library.decode(args, torch.cuda.current_stream(q_nope.device).cuda_stream)
        return out


def _check(name: str, tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Refuse a tensor of another type or shape, or whose rows 16-byte loads can't take."""
    if tensor.dtype != dtype or tuple(tensor.shape) != shape:
        raise ValueError(f"{name} must be {dtype} of shape {shape}, not {tensor.dtype} of shape {tuple(tensor.shape)}")
    size = tensor.element_size()
    aligned = tensor.data_ptr() % 16 == 0 and all(tensor.stride(i) * size % 16 == 0 for i in range(tensor.dim() - 1))
    if tensor.stride(-1) != 1 or not aligned:
        raise ValueError(
            f"{name} needs rows of contiguous values on 16-byte boundaries, its strides are {tensor.stride()}"
        )
