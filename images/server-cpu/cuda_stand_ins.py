"""Shared libraries that let the registry's CUDA build of torch load on a machine without CUDA.

torch is linked against some 3 GB of libraries of its nvidia-* dependencies. A CPU server calls none of their functions.
For each library that torch, torchvision and torchaudio name, an empty one of the same SONAME is built, all of them
linked to one that defines the missing functions; a function that is called after all prints its name and aborts.
libcudart is the real one: torch calls it while it loads. Needs gcc and binutils.
"""

import re
import subprocess
import tempfile
from pathlib import Path

LIBRARIES = re.compile(
    r"lib(cublas|cublasLt|cudnn|nccl|nvrtc|cupti|nvshmem_host|curand|cufft|cufile"
    r"|cusparse|cusparseLt|cusolver|nvJitLink)\.so"
)
FUNCTIONS = re.compile(
    r"(cublas|cudnn|nccl|nvrtc|cupti|nvshmemx?|curand|cufft|cu[fF]ile|cusparse|cusolver|(__)?nvJitLink|_Z.*nvshmem)"
)
ABORTING = """#include <stdio.h>
#include <stdlib.h>
static void called(const char *name) {
    fprintf(stderr, "%s was called, but this CPU environment has no CUDA libraries\\n", name);
    abort();
}
"""


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def needed(objects: list[Path]) -> tuple[list[str], list[str]]:
    """Return the SONAMEs of CUDA libraries that `objects` need, and the functions that none of `objects` defines."""
    libraries: set[str] = set()
    undefined: set[str] = set()
    defined: set[str] = set()
    for path in objects:
        libraries |= set(re.findall(r"NEEDED.*\[(.*)\]", _output("readelf", "--dynamic", str(path))))
        for line in _output("nm", "--dynamic", str(path)).splitlines():
            *_, kind, symbol = line.split()
            (undefined if kind in "Uw" else defined).add(symbol.partition("@")[0])
    return (
        sorted(name for name in libraries if LIBRARIES.match(name)),
        sorted(name for name in undefined - defined if FUNCTIONS.match(name)),
    )


def build(site_packages: Path) -> list[str]:
    """Put the stand-ins into torch/lib under `site_packages`, and return their names."""
    lib = site_packages / "torch/lib"
    patterns = ("torch/lib/*.so*", "torch/_C*.so", "torchvision/*.so", "torchvision.libs/*", "torchaudio/lib/*.so")
    libraries, functions = needed([path for pattern in patterns for path in sorted(site_packages.glob(pattern))])
    compiler = ("gcc", "-shared", "-fPIC", "-O1", "-w")
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch, "functions.c")
        source.write_text(ABORTING + "\n".join(f'void {name}(void) {{ called("{name}"); }}' for name in functions))
        empty = Path(scratch, "empty.c")
        empty.touch()
        shared = "libglm5_no_cuda.so"
        subprocess.run([*compiler, "-o", str(lib / shared), f"-Wl,-soname,{shared}", str(source)], check=True)
        for name in libraries:
            link = [f"-Wl,-soname,{name}", "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN", f"-L{lib}", f"-l:{shared}"]
            subprocess.run([*compiler, "-o", str(lib / name), str(empty), *link], check=True)
    return libraries
