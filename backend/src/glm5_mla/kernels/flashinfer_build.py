"""Compiles FlashInfer's modules ahead of time: `python -m glm5_mla.kernels.flashinfer_build` (needs nvcc, no GPU).

Without it the first server on a card compiles them for minutes. They are put where FlashInfer looks for modules that
came with it, before its cache; one that it can't load there it compiles as ever.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from glm5_mla.kernels import KV_LORA_RANK, ROPE_DIM
from glm5_mla.kernels.native.build import find_nvcc

ARCHITECTURE = "9.0a"
"""H100 and H200; elsewhere FlashInfer chooses modules of other names. One that all cards share must not be built so."""
PREFILL_HEAD = 256
"""GLM-5's head without absorption: 192 + 64 for queries and keys, 256 for values."""


def modules() -> list[Any]:
    """Return FlashInfer's build specifications of what a server of GLM-5 asks for."""
    import torch
    from flashinfer.jit.attention.modules import gen_batch_mla_module, gen_batch_prefill_module

    bf16, fp8, index = torch.bfloat16, torch.float8_e4m3fn, torch.int32
    return [
        *(gen_batch_mla_module("fa3", bf16, rows, bf16, index, KV_LORA_RANK, ROPE_DIM, False) for rows in (fp8, bf16)),
        gen_batch_prefill_module("fa3", bf16, bf16, bf16, index, PREFILL_HEAD, PREFILL_HEAD, 0, False, False, False),
    ]


def link_libraries(folder: Path, home: Path) -> None:
    """Make `folder` hold what the linker wants and a CUDA compiler from Python packages lacks.

    That is libcudart under its name without a version, and a libcuda, which only a driver brings.
    """
    runtime = next(iter(sorted((home / "lib").glob("libcudart.so*"))), None)
    if runtime is not None:
        (folder / "libcudart.so").symlink_to(runtime)
    source = folder / "stub.c"
    source.write_text("")
    command = ["cc", "-shared", "-Wl,-soname,libcuda.so.1", "-o", str(folder / "libcuda.so"), str(source)]
    subprocess.run(command, check=True)


def build(target: Path | None) -> None:
    """Build all modules and put each at TARGET/NAME/NAME.so; the default is FlashInfer's own folder for them."""
    home = find_nvcc().parent.parent
    with tempfile.TemporaryDirectory() as folder:
        link_libraries(Path(folder), home)
        os.environ |= {
            "CUDA_HOME": str(home),
            "FLASHINFER_CUDA_ARCH_LIST": ARCHITECTURE,
            "FLASHINFER_WORKSPACE_BASE": folder,
            "FLASHINFER_EXTRA_LDFLAGS": f"-L{folder} {os.environ.get('FLASHINFER_EXTRA_LDFLAGS', '')}".strip(),
        }
        from flashinfer.jit import env

        for module in modules():
            begin = time.monotonic()
            module.build()
            place = (target or env.FLASHINFER_AOT_DIR) / module.name
            place.mkdir(parents=True, exist_ok=True)
            shutil.copy(module.jit_library_path, place)
            print(f"{module.name}: {time.monotonic() - begin:.0f} s", flush=True)


def main() -> int:
    """Build; 1 with the reason when there is no compiler."""
    parser = argparse.ArgumentParser(description="Compile FlashInfer's modules for SM90 ahead of time.")
    parser.add_argument("--into", type=Path, help="folder to write to (default: FlashInfer's own)")
    try:
        build(parser.parse_args().into)
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
