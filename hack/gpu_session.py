"""All that wants a card, one step after the other, each in a bounded time: `make gpu-session`.

Needs an NVIDIA card, SGLang, pytest and the built kernel (make kernel). What a step printed and measured lies in the
folder OUT, with summary.json; a step that fails or runs out of time does not keep the next from running.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

PYTEST = ("-m", "pytest", "-m", "gpu", "-rs", "--durations=5")
BENCH_SERVER = ("-m", "glm5_mla.bench.server", "--argument=--disable-prefill-cuda-graph")
SANITIZER_FOLDERS = "/usr/local/cuda/bin:/usr/local/cuda/compute-sanitizer"


class Step(NamedTuple):
    """Arguments for Python, in which OUT is the folder of results."""

    name: str
    limit_s: int
    arguments: tuple[str, ...]
    environment: dict[str, str] = {}
    under: tuple[str, ...] = ()
    """A program that runs Python, with its arguments; where it isn't installed the step is left out."""


STEPS = (
    # What tells most for its time comes first.
    Step("kernels", 150, (*PYTEST, "tests/gpu/test_kernels.py", "tests/gpu/test_device_clock.py")),
    Step(
        "racecheck",
        150,
        (*PYTEST, "tests/gpu/test_kernels.py", "-k", "cuda and (query_token or share_one_kernel)"),
        under=("compute-sanitizer", "--tool", "racecheck", "--print-limit", "20"),
    ),
    Step("bench-kernel", 270, ("-m", "glm5_mla.bench.kernel", "--output", "OUT/kernel.json", "--seconds", "240")),
    Step("servers", 900, (*PYTEST, "tests/gpu/test_server.py"), {"GLM5_MIXED_SECONDS": "300"}),
    Step(
        "sparse",
        420,
        (*BENCH_SERVER, "--out", "OUT/sparse.json", "--wave", "sparse", "--max-batch", "8", "--max-context", "8000"),
    ),
    Step(
        "timing-cost",
        480,
        (
            *BENCH_SERVER,
            *("--out", "OUT/timing-cost.json", "--wave", "never-cuda,untimed-cuda", "--timing-rounds", "12"),
            *("--max-batch", "1", "--max-context", "8000"),
        ),
    ),
)


def run(step: Step, out: Path, python: str) -> dict[str, object]:
    """Run a step; returns what became of it: `result` (exit status, or in words) and `seconds`."""
    prefix: tuple[str, ...] = ()
    if step.under:
        program = shutil.which(step.under[0], path=f"{os.environ.get('PATH', '')}:{SANITIZER_FOLDERS}")
        if program is None:
            return {"result": f"left out: there is no {step.under[0]} here", "seconds": 0}
        prefix = (program, *step.under[1:])
    begin = time.monotonic()
    command = [*prefix, python, *(argument.replace("OUT", str(out)) for argument in step.arguments)]
    with (out / f"{step.name}.log").open("w") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={"PYTHONPATH": "backend/src", **os.environ, **step.environment},
            start_new_session=True,
        )
        try:
            result: object = process.wait(step.limit_s)
        except subprocess.TimeoutExpired:
            result = f"ended after {step.limit_s} s"
        finally:
            # Servers that it started have sessions of their own: it ends them when it is interrupted.
            end(process)
    return {"result": result, "seconds": round(time.monotonic() - begin, 1)}


def end(process: subprocess.Popen) -> None:
    """End a step's processes: asked first, so that a test run stops its servers, then killed."""
    for number, patience in ((signal.SIGINT, 20), (signal.SIGKILL, 5)):
        if process.poll() is not None:
            return
        os.killpg(process.pid, number)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps asked for; 1 when one of them did not end with status 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/gpu-session"))
    parser.add_argument("--only", default="", metavar="STEP,STEP", help=", ".join(step.name for step in STEPS))
    args = parser.parse_args(arguments)
    wanted = [name for name in args.only.split(",") if name]
    unknown = set(wanted) - {step.name for step in STEPS}
    if unknown:
        parser.error(f"--only: there is no step {' or '.join(sorted(unknown))}")
    args.out.mkdir(parents=True, exist_ok=True)
    summary: dict[str, dict[str, object]] = {}
    for step in STEPS:
        if wanted and step.name not in wanted:
            continue
        summary[step.name] = run(step, args.out.resolve(), sys.executable)
        print(f"{step.name}: {summary[step.name]['result']} ({summary[step.name]['seconds']} s)", flush=True)
        (args.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    return 0 if all(found["result"] == 0 for found in summary.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
