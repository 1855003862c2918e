"""Create the Python environment in which the real SGLang runs on a CPU.

    python3.11 create_env.py DIRECTORY

Used by the CPU server image and, on a developer's machine, by `make sglang-env`. SGLang, torch and the rest come from
the package index as they are, pinned in requirements.txt. Stand-ins, all of which raise or abort when called: CUDA's
libraries (cuda_stand_ins.py), sgl_kernel and Triton (stand_ins/).
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import cuda_stand_ins

HERE = Path(__file__).parent
# The modules that SGLang's processes begin with.
PROCESSES = (
    "sglang.launch_server",
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.managers.scheduler",
    "sglang.srt.models.registry",
    "sglang.srt.models.deepseek_v2",
)


def run(*command: str | Path) -> None:
    """Run a command; its failure ends the program with its exit status, as its own output has said what is wrong."""
    status = subprocess.run([str(part) for part in command], check=False).returncode
    if status:
        sys.exit(status)


def create(env: Path) -> None:
    """Create the environment in `env`, which must not exist or be an incomplete one. Complete: env/.complete exists."""
    complete = env / ".complete"
    if complete.exists():
        return
    if env.exists() and not (env / "pyvenv.cfg").exists():
        sys.exit(f"{env} exists and is not a Python environment: give another directory, or remove it")
    shutil.rmtree(env, ignore_errors=True)
    started = time.monotonic()
    run(sys.executable, "-m", "venv", env)
    python = env / "bin/python"
    print("installing SGLang and what it imports (about 0.8 GB to download the first time)", flush=True)
    pip = (python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--no-compile")
    run(*pip, "--requirement", HERE / "requirements.txt")
    site_packages = next(env.glob("lib/python3.*/site-packages"))
    shutil.copy(site_packages / "nvidia/cu13/lib/libcudart.so.13", site_packages / "torch/lib")
    shutil.rmtree(site_packages / "nvidia/cu13")
    print("stand-ins for", *cuda_stand_ins.build(site_packages), flush=True)
    shutil.copytree(HERE / "stand_ins", site_packages, dirs_exist_ok=True)
    # Proves that all parts fit, and leaves compiled modules behind: a pod's user could not write them at each start.
    run(python, "-W", "ignore", "-c", f"import {', '.join(PROCESSES)}")
    complete.touch()
    print(f"{env}: {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Create the Python environment in which SGLang runs on a CPU.")
    parser.add_argument("directory", type=Path)
    if sys.version_info[:2] != (3, 11) or os.uname().machine != "x86_64":
        sys.exit("SGLang's packages are pinned for Python 3.11 on x86-64 Linux: run this with python3.11 there")
    create(parser.parse_args().directory.absolute())
