"""Stand-in for Triton, in the CPU environment only: enough for `import`, and an error when a kernel is launched.

SGLang defines its Triton kernels while it loads, on a CPU too, and never launches them there. Triton itself is 700 MB.
Any submodule and any name under `triton` exists. Names in capitals are classes that can be derived from, the decorators
keep what they decorate as a kernel that can't be launched, and any other name raises when it is called.
"""

import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

__version__ = "3.8.0+stand.in"
# Decorators that SGLang and torch use on kernels and their helpers.
DECORATORS = ("jit", "constexpr_function", "builtin", "autotune", "heuristics")
# Older Tritons have no such module, and SGLang then leaves its hooks into Triton's runtime alone.
ABSENT = "triton.knobs"


class Kernel:
    """A function that was to become a GPU kernel."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.fn = function
        self.__name__ = getattr(function, "__name__", "kernel")

    def __getitem__(self, _grid: object) -> NoReturn:
        self()

    def __call__(self, *_args: object, **_kwargs: object) -> NoReturn:
        """Refuse to run."""
        raise NotImplementedError(f"Triton kernel {self.__name__} was launched, but this CPU environment has no Triton")


def _decorator(*args: Any, **kwargs: Any) -> Any:
    """Serve both as `@jit` and as `@jit(option=...)`, `@autotune(...)`, `@heuristics({...})`."""
    if len(args) == 1 and not kwargs and (callable(args[0]) or isinstance(args[0], Kernel)):
        return args[0] if isinstance(args[0], Kernel) else Kernel(args[0])
    return _decorator


class _Name(types.ModuleType):
    """A name under `triton`: a module to the import system, and a value that raises when called."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__spec__ = importlib.machinery.ModuleSpec(name, _LOADER, is_package=True)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _resolve(f"{self.__name__}.{name}", name)
        setattr(self, name, value)
        return value

    def __call__(self, *_args: object, **_kwargs: object) -> NoReturn:
        raise NotImplementedError(f"{self.__name__} was called, but this CPU environment has no Triton")

    def __or__(self, other: object) -> Any:
        return Any  # annotations such as `tl.tensor | None`

    __ror__ = __or__


def _resolve(full_name: str, name: str) -> Any:
    if full_name in sys.modules:
        return sys.modules[full_name]
    if name in DECORATORS:
        return _decorator
    if name[0].isupper():
        return type(name, (), {"__module__": full_name.rpartition(".")[0]})
    return _Name(full_name)


class _Loader:
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Name(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class _Finder:
    """Finds every `triton.*` module but the absent one."""

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.startswith("triton.") and name != ABSENT:
            return importlib.machinery.ModuleSpec(name, _LOADER, is_package=True)
        return None


_LOADER: Any = _Loader()
sys.meta_path.insert(0, _Finder())  # type: ignore[arg-type]
jit = autotune = heuristics = _decorator


class Config:
    """Launch parameters, kept as given."""

    def __init__(self, kwargs: dict[str, Any] | None = None, **options: Any) -> None:
        self.kwargs = kwargs or {}
        self.__dict__.update(options)


def cdiv(x: int, y: int) -> int:
    """Return x / y rounded up."""
    return -(x // -y)


def next_power_of_2(n: int) -> int:
    """Return the smallest power of two that is not below n."""
    return 1 << (n - 1).bit_length() if n > 0 else 1


def __getattr__(name: str) -> Any:
    if name.startswith("__") or f"triton.{name}" == ABSENT:
        raise AttributeError(name)
    return importlib.import_module(f"triton.{name}") if name[0].islower() else _resolve(f"triton.{name}", name)


class _Constexpr:
    """`tl.constexpr`: an annotation, or a value known when a kernel is compiled."""

    def __init__(self, value: object = None) -> None:
        self.value = value


language = importlib.import_module("triton.language")
language.constexpr = _Constexpr  # type: ignore[attr-defined]
