"""Builds the CUDA kernel's library ahead of time: `python -m glm5_mla.kernels.native.build` (needs nvcc 12.8 or newer).

The library holds code for SM90 (H100, H200) and SM120 (RTX PRO 6000 Blackwell) and links the CUDA runtime statically,
so that it runs beside any torch.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

from glm5_mla.kernels.native.library import LIBRARY

SOURCES = tuple(Path(__file__).with_name(name) for name in ("mla_decode.cu", "read_rows.cu"))
ARCHITECTURES = ("90a", "120a")


def find_nvcc() -> Path:
    """Find nvcc: in CUDA_HOME, on PATH, in /usr/local/cuda, or from the package nvidia-cuda-nvcc of this Python.

    Raises `FileNotFoundError` when there is none.
    """
    packages = Path(sysconfig.get_paths()["purelib"]) / "nvidia"
    homes = [
        os.environ.get("CUDA_HOME"),
        "/usr/local/cuda",
        *(str(p) for p in sorted(packages.glob("cu*"), reverse=True)),
    ]
    candidates = [Path(home) / "bin" / "nvcc" for home in homes if home]
    on_path = shutil.which("nvcc")
    if on_path:
        candidates.insert(1, Path(on_path))
    for nvcc in candidates:
        if nvcc.is_file():
            return nvcc
    raise FileNotFoundError("no nvcc: install the CUDA toolkit, or the nvidia-* packages of requirements-dev.txt")


def command(nvcc: Path, architectures: tuple[str, ...], *arguments: str) -> list[str]:
    """Compose an nvcc command line for `architectures` (such as "90a")."""
    home = nvcc.parent.parent
    codes = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in architectures]
    return [str(nvcc), "-O3", "-std=c++17", f"-I{home}/include", f"-L{home}/lib", "-cudart=static", *codes, *arguments]


def build(output: Path, nvcc: Path) -> None:
    """Compile the library to `output`; raises `subprocess.CalledProcessError` when the compiler fails."""
    subprocess.run(
        command(nvcc, ARCHITECTURES, "-shared", "-Xcompiler=-fPIC", "-o", str(output), *map(str, SOURCES)), check=True
    )


def main() -> None:
    """Build the library where `library.load` looks for it."""
    parser = argparse.ArgumentParser(description="Build the CUDA MLA kernel's library.")
    parser.add_argument("--output", type=Path, default=LIBRARY, help=f"file to write (default {LIBRARY})")
    args = parser.parse_args()
    build(args.output, find_nvcc())


if __name__ == "__main__":
    main()
