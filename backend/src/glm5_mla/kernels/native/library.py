"""The compiled MLA kernel behind its C interface (`mla_decode.h`), loaded with ctypes: it binds to no torch version."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

ABI = 3
LIBRARY = Path(__file__).with_name("libglm5_mla.so")


class Args(ctypes.Structure):
    """`Glm5MlaArgs` of mla_decode.h, field by field."""

    _fields_ = [
        ("q_nope", ctypes.c_void_p),
        ("q_rope", ctypes.c_void_p),
        ("pool", ctypes.c_void_p),
        ("qo_indptr", ctypes.c_void_p),
        ("kv_indptr", ctypes.c_void_p),
        ("kv_indices", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("lse", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("q_nope_token_stride", ctypes.c_int64),
        ("q_nope_head_stride", ctypes.c_int64),
        ("q_rope_token_stride", ctypes.c_int64),
        ("q_rope_head_stride", ctypes.c_int64),
        ("row_stride", ctypes.c_int64),
        ("batch", ctypes.c_int32),
        ("heads", ctypes.c_int32),
        ("max_q_len", ctypes.c_int32),
        ("score_scale", ctypes.c_float),
        ("out_scale", ctypes.c_float),
        ("ctas", ctypes.c_uint32),
        ("min_portion", ctypes.c_uint32),
        ("segment_cost", ctypes.c_uint32),
        ("align", ctypes.c_uint32),
        ("min_segment", ctypes.c_uint32),
    ]


class CudaKernelError(RuntimeError):
    """The kernel's library refused a call or CUDA reported an error."""


class Library:
    """The functions of the shared library at `path`; raises `OSError` when it isn't there or can't be loaded."""

    def __init__(self, path: Path) -> None:
        self._lib = ctypes.CDLL(os.fspath(path))
        self._lib.glm5_mla_abi.restype = ctypes.c_int
        self._lib.glm5_mla_error.restype = ctypes.c_char_p
        self._lib.glm5_mla_error.argtypes = [ctypes.c_int]
        self._lib.glm5_mla_prepare.restype = ctypes.c_int
        self._lib.glm5_mla_prepare.argtypes = [ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_size_t)]
        self._lib.glm5_mla_decode.restype = ctypes.c_int
        self._lib.glm5_mla_decode.argtypes = [ctypes.POINTER(Args), ctypes.c_void_p]
        self._lib.glm5_mla_read_rows.restype = ctypes.c_int
        self._lib.glm5_mla_read_rows.argtypes = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_int32,
            ctypes.c_void_p,
            ctypes.c_int32,
            ctypes.c_void_p,
        ]
        abi = self._lib.glm5_mla_abi()
        if abi != ABI:
            raise OSError(f"{path} has interface version {abi}, this package needs {ABI}: build it again")

    def _check(self, code: int, doing: str) -> None:
        if code:
            raise CudaKernelError(f"{doing}: {self._lib.glm5_mla_error(code).decode()} (code {code})")

    def prepare(self, heads: int, max_q_len: int) -> int:
        """Ready the kernels on the current device; returns the bytes of workspace that calls in these bounds need."""
        size = ctypes.c_size_t()
        self._check(self._lib.glm5_mla_prepare(heads, max_q_len, ctypes.byref(size)), "preparing the CUDA MLA kernel")
        return size.value

    def decode(self, args: Args, stream: int) -> None:
        """Launch one layer on `stream` (a CUDA stream handle)."""
        self._check(self._lib.glm5_mla_decode(ctypes.byref(args), stream), "launching the CUDA MLA kernel")

    def read_rows(self, pool: int, rows: int, count: int, sink: int, blocks_per_sm: int, stream: int) -> None:
        """Read `count` listed rows and do nothing with them; the first four are device addresses and a number."""
        self._check(self._lib.glm5_mla_read_rows(pool, rows, count, sink, blocks_per_sm, stream), "reading rows")


@functools.cache
def load() -> Library:
    """Load the library that was built ahead of time; `GLM5_MLA_LIBRARY` names another file."""
    return Library(Path(os.environ.get("GLM5_MLA_LIBRARY") or LIBRARY))
