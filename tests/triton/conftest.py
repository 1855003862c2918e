"""The Triton kernels, run by Triton's interpreter on CPU tensors (make test-triton).

What is tested is the source's numbers: not the compiler's work, and no speed.

Triton 3.8's interpreter is wrong in three places, mended here: it multiplies bfloat16 matrices as the integers that
hold their bits, cuts float32 off to bfloat16 where a GPU rounds to nearest, and takes e4m3's NaN for 480.
"""

import os

os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel's module is imported

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter

PROCESSORS = 4
"""Of the GPU that the kernels believe in: they choose splits and grids by it."""


def _values(handle):
    if handle.dtype.scalar == tl.bfloat16:
        return (handle.data.astype(np.uint32) << 16).view(np.float32)
    return handle.data


def _dot(_builder, a, b, accumulator, _precision, _imprecise):
    product = np.matmul(_values(a), _values(b), dtype=accumulator.data.dtype)
    return interpreter.TensorHandle(product + accumulator.data, accumulator.dtype.scalar)


_convert = interpreter._convert_float
_TORCH = {tl.float32: torch.float32, tl.float8e4nv: torch.float8_e4m3fn}


def _converted(data, source, target, mode):
    if target == tl.bfloat16 and source in _TORCH:
        bits = torch.from_numpy(np.ascontiguousarray(data)).view(_TORCH[source])
        return bits.to(torch.bfloat16).view(torch.uint16).numpy()
    return _convert(data, source, target, mode)


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", _dot)
    monkeypatch.setattr(interpreter, "_convert_float", _converted)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _device: SimpleNamespace(multi_processor_count=PROCESSORS)
    )
    with np.errstate(all="ignore"):  # a GPU says nothing either about 1 / 0
        yield
