"""Stand-in for SGLang's compiled kernels, in the CPU environment only.

With SGLANG_USE_CPU_ENGINE=1 SGLang imports names from `sgl_kernel` while it loads; on a machine without AMX it calls
none of them. Every name is here, and raises when it is called. Submodules are absent on purpose: SGLang asks whether
they exist.
"""

from collections.abc import Callable
from typing import NoReturn

__version__ = "0.0.0+stand.in"
__path__: list[str] = []


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_args: object, **_kwargs: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} was called, but this CPU environment has no sgl_kernel")

    absent.__name__ = name
    return absent
