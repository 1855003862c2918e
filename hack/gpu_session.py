"""All that wants a card, in bounded steps: `make gpu-session`.

Needs one NVIDIA card or more, SGLang with this package installed, pytest and the built kernel (make kernel). Steps
stand in lanes. With two cards or more the lanes run side by side: in `timing` one step at a time has the first card to
itself, and all others share the second, since their times do not count. With one card everything runs in order. The
lane `all` comes last and has every card.

What a step printed and measured lies in the folder OUT, with summary.json, which is written anew when a step begins and
when it ends. A step that fails or runs out of time does not keep others from running, except those that need it.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

CLI = ("-c", "import sys; from glm5_mla.cli import main; sys.exit(main())")
PYTEST = ("-m", "pytest", "-m", "gpu", "-rs", "--durations=8", "-p", "no:cacheprovider")
KERNEL_TESTS = "tests/gpu/test_kernels.py"
BENCH_SERVER = ("-m", "glm5_mla.bench.server", "--start-limit", "300")
CUDA_FOLDERS = "/usr/local/cuda/bin:/usr/local/cuda/compute-sanitizer"

LEFT_OUT = "left out"
TIMING, SERVERS, KERNELS, ALL = "timing", "servers", "kernels", "all"


class Step(NamedTuple):
    """Arguments for Python, in which OUT is the folder of results and GPUS the number of cards."""

    name: str
    lane: str
    limit_s: int
    arguments: tuple[str, ...]
    environment: dict[str, str] = {}
    under: tuple[str, ...] = ()
    """A program that runs Python, with its arguments; where it isn't installed the step is left out."""
    needs: str = ""
    """A step before it, maybe of another lane, without whose success this one is left out."""
    least_cards: int = 1


STEPS = (
    # The longest first: its servers run for minutes beside everything else.
    Step(
        "servers",
        SERVERS,
        900,
        (*PYTEST, "tests/gpu/test_server.py", "--basetemp", "OUT/details/servers-test"),
        {"GLM5_MIXED_SECONDS": "480"},
    ),
    Step("audit", KERNELS, 60, (*CLI, "audit")),
    Step("doctor", KERNELS, 120, (*CLI, "doctor")),
    Step("kernels", KERNELS, 240, (*PYTEST, KERNEL_TESTS)),
    Step("sparse-check", KERNELS, 300, (*PYTEST, "tests/gpu/test_sparse.py", "--basetemp", "OUT/details/sparse-test")),
    Step("numerics", KERNELS, 120, (*BENCH_SERVER, "--out", "OUT/numerics.json", "--numerics")),
    *(
        Step(
            tool,
            KERNELS,
            180,
            (*PYTEST, KERNEL_TESTS, "-k", "cuda and (each_query_token or share_one_kernel)"),
            under=("compute-sanitizer", "--tool", tool, "--kernel-name", "kernel_substring=mla_decode"),
        )
        for tool in ("memcheck", "racecheck")
    ),
    Step(
        "bench-kernel", TIMING, 260, ("-m", "glm5_mla.bench.kernel", "--output", "OUT/kernel.json", "--seconds", "220")
    ),
    Step(
        "counters",
        TIMING,
        90,
        ("-m", "glm5_mla.bench.counters", "--out", "OUT/counters.json", "--details", "OUT/details"),
    ),
    Step(
        "bench-server",
        TIMING,
        720,
        (
            *(*BENCH_SERVER, "--out", "OUT/server.json", "--work", "OUT/details/bench-server", "--stamps"),
            # Four servers with the whole pool are what a card of 139 GiB holds.
            *("--wave", "never-cuda,active-rows,whole-pool,never-flashinfer"),
            *("--profile", "never-cuda", "--profile", "active-rows", "--profile", "never-flashinfer"),
            *("--wave", "sglang-triton,timed-1,untimed-1,timed-2,untimed-2", "--timing-rounds", "14"),
        ),
    ),
    Step(
        "bench-sparse",
        TIMING,
        240,
        (
            *(*BENCH_SERVER, "--out", "OUT/sparse.json", "--work", "OUT/details/bench-sparse", "--port", "30400"),
            *("--wave", "sparse", "--cases", "1x8000,1x64000,8x8000,32x8000"),
        ),
        needs="sparse-check",
    ),
    Step(
        "bench-gpus",
        ALL,
        560,
        (
            *BENCH_SERVER,
            *("--out", "OUT/gpus-GPUS.json", "--work", "OUT/details/bench-gpus", "--port", "30600", "--gpus", "GPUS"),
            *("--wave", "never-cuda,active-rows,whole-pool,never-flashinfer"),
            # At 131,072 the pool holds three.
            *("--cases", "1x8000,8x8000,32x8000,1x131072,3x131072"),
            *("--profile", "never-cuda", "--scrape", "never-cuda"),
            # Plain NCCL: SGLang's own all-reduce and FlashInfer's fused one use ways that not every machine allows.
            *("--argument=--disable-custom-all-reduce", "--argument=--enforce-disable-flashinfer-allreduce-fusion"),
        ),
        least_cards=2,
    ),
)


class Session:
    """Runs steps in their lanes and keeps the summary."""

    def __init__(self, steps: Sequence[Step], out: Path, cards: Sequence[str]) -> None:
        self._steps, self._out, self._cards = steps, out.resolve(), list(cards)
        self._begin = time.monotonic()
        self._lock = threading.Lock()
        self._ended = {step.name: threading.Event() for step in steps}
        self._running: list[subprocess.Popen] = []
        self._stopped = False
        self.summary: dict[str, dict[str, object]] = {}

    def run(self) -> None:
        """Run all steps; returns when the last has ended."""
        lanes = {step.lane: [each for each in self._steps if each.lane == step.lane] for step in self._steps}
        last = lanes.pop(ALL, [])
        if len(self._cards) > 1:
            threads = [threading.Thread(target=self._run_lane, args=(lane,)) for lane in lanes.values()]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        else:
            # Kernels and times tell most for their time; a step comes after the one that it needs.
            for lane in (KERNELS, TIMING, SERVERS):
                self._run_lane(lanes.get(lane, []))
        self._run_lane(last)

    def status(self, named: Collection[str]) -> int:
        """Return 0 when every step succeeded; what this machine lacks cards or programs for may miss, unless named."""
        results = [found["result"] for name, found in self.summary.items() if name in named or not _is_left_out(found)]
        return 1 if self._stopped or any(result != 0 for result in results) else 0

    def stop(self) -> None:
        """End the running steps and start no others."""
        self._stopped = True
        for process in list(self._running):
            end(process)

    def _run_lane(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self._note(step, {"result": "running", "seconds": 0})
            try:
                self._note(step, self._run_step(step))
            finally:
                self._ended[step.name].set()

    def _run_step(self, step: Step) -> dict[str, object]:
        if self._stopped:
            return _left_out("the session was ended")
        if len(self._cards) < step.least_cards:
            return _left_out(f"it needs {step.least_cards} cards")
        if step.needs in self._ended:
            self._ended[step.needs].wait()
            if self.summary[step.needs]["result"] != 0:
                return _left_out(f"{step.needs} did not succeed")
        prefix: tuple[str, ...] = ()
        if step.under:
            program = find_program(step.under[0])
            if program is None:
                return _left_out(f"there is no {step.under[0]} here")
            prefix = (program, *step.under[1:])
        begin = time.monotonic()
        words = (word.replace("OUT", str(self._out)).replace("GPUS", str(len(self._cards))) for word in step.arguments)
        with (self._out / f"{step.name}.log").open("w") as log:
            process = subprocess.Popen(
                [*prefix, sys.executable, *words],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={"PYTHONUNBUFFERED": "1", **os.environ, **step.environment, **self._cards_of(step)},
                start_new_session=True,
            )
            self._running.append(process)
            if self._stopped:  # since it was asked above
                end(process)
            try:
                result: object = process.wait(step.limit_s)
            except subprocess.TimeoutExpired:
                result = f"ended after {step.limit_s} s"
            finally:
                end(process)
                self._running.remove(process)
        if self._stopped:
            result = "ended with the session"
        return {"result": result, "seconds": round(time.monotonic() - begin, 1)}

    def _cards_of(self, step: Step) -> dict[str, str]:
        """Say which cards a step sees: the first in lane `timing`, the second in the others, all in lane `all`."""
        if step.lane == ALL:
            return {"CUDA_VISIBLE_DEVICES": ",".join(self._cards)}
        return {"CUDA_VISIBLE_DEVICES": self._cards[0] if step.lane == TIMING else self._cards[:2][-1]}

    def _note(self, step: Step, found: dict[str, object]) -> None:
        with self._lock:
            self.summary[step.name] = {**found, "lane": step.lane, "at_s": round(time.monotonic() - self._begin, 1)}
            whole = self._out / "summary.json.new"
            whole.write_text(json.dumps(self.summary, indent=1) + "\n")
            whole.rename(self._out / "summary.json")
        print(
            f"{self.summary[step.name]['at_s']:7.1f} s  {step.name}: {found['result']} ({found['seconds']} s)",
            flush=True,
        )


def _left_out(why: str) -> dict[str, object]:
    return {"result": f"{LEFT_OUT}: {why}", "seconds": 0}


def _is_left_out(found: Mapping[str, object]) -> bool:
    return str(found["result"]).startswith(LEFT_OUT)


def find_program(name: str) -> str | None:
    """Find a program of the CUDA toolkit, which need not be on PATH."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{CUDA_FOLDERS}")


def descendants(pid: int) -> Iterator[int]:
    """Yield a process's children, theirs, and so on."""
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (thread / "children").read_text().split()):
                yield child
                yield from descendants(child)


def end(process: subprocess.Popen) -> None:
    """End a step with all that it started: asked first, so that a test run stops its servers, then killed."""
    started = list(descendants(process.pid))
    for number, patience in ((signal.SIGINT, 20), (signal.SIGKILL, 5)):
        if process.poll() is not None:
            break
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
    for pid in started:  # servers have sessions of their own
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def find_cards() -> list[str]:
    """Name the cards that may be used, as CUDA_VISIBLE_DEVICES does; one where nothing tells."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible:
        return visible.split(",")
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        listed = subprocess.run(["nvidia-smi", "-L"], check=True, capture_output=True, text=True).stdout
        count = sum(line.startswith("GPU ") for line in listed.splitlines())
        return [str(number) for number in range(max(1, count))]
    return ["0"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps asked for; 1 when one failed, the session was ended, or one that --only names was left out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/gpu-session"))
    parser.add_argument("--only", default="", metavar="STEP,STEP", help=", ".join(step.name for step in STEPS))
    args = parser.parse_args(arguments)
    wanted = [name for name in args.only.split(",") if name]
    unknown = set(wanted) - {step.name for step in STEPS}
    if unknown:
        parser.error(f"--only: there is no step {' or '.join(sorted(unknown))}")
    (args.out / "details").mkdir(parents=True, exist_ok=True)
    steps = [step for step in STEPS if not wanted or step.name in wanted]
    session = Session(steps, args.out, find_cards())

    def stop(*_: object) -> None:
        threading.Thread(target=session.stop).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    session.run()
    return session.status(wanted)


if __name__ == "__main__":
    sys.exit(main())
