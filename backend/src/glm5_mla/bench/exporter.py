"""`make bench-exporter`: what the exporter costs beside a server of eight ranks, and what its figures cost the ranks.

Real parts: ranks' files written at the asked-for rate by another process, the exporter as its container runs it (the
server and the process that starts it again), scrapes over HTTP on loopback. Times depend on the machine and on what
else it does; nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glm5_mla.timing.rankfile import BackendInfo, RankWriter, StepRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

STEP = StepRecord(1, 6_500_000, 7_000_000, 100_000, 2_100_000, 1152, 8, 65_536, True)
_TICKS = os.sysconf("SC_CLK_TCK")


def write_ranks(run_dir: str, ranks: int, rate: float) -> None:
    """Write steps of all ranks at ``rate`` a second each, until the process is ended."""
    info = BackendInfo("Never", "cuda", "0.1.0", "0.5.23", "0.7.2", "2.14.1", "NVIDIA H200", True)
    writers = [RankWriter(run_dir, rank, ranks, info) for rank in range(ranks)]
    print("ready", flush=True)
    due = time.monotonic()
    while True:
        for writer in writers:
            writer.record(STEP)
            writer.add_tokens(STEP.batch)
        due += 1 / rate
        time.sleep(max(0.0, due - time.monotonic()))


def writer_cost_us(run_dir: str, count: int = 20_000) -> dict[str, float]:
    """Return the CPU time of one call of the writer's methods, in microseconds."""
    writer = RankWriter(run_dir, 0, 1, BackendInfo("Never", "cuda", "0.1.0"))

    def cost(call: Any, *arguments: Any) -> float:
        start = time.thread_time()
        for _ in range(count):
            call(*arguments)
        return round((time.thread_time() - start) / count * 1e6, 2)

    costs = {"record": cost(writer.record, STEP), "add_tokens": cost(writer.add_tokens, 8)}
    writer.close()
    return costs


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the CPU time that processes have used."""
    stats = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids)
    return sum(int(fields[11]) + int(fields[12]) for fields in stats) / _TICKS


def memory_mib(pids: Iterable[int]) -> float:
    """Return the memory that processes hold; what they share is shared out among all that have it."""
    rollups = (Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids)
    return round(sum(int(text.partition("Pss:")[2].split()[0]) for text in rollups) / 1024, 1)


def fetch(url: str) -> tuple[float, bytes]:
    """Return the seconds that an answer took, and its body."""
    start = time.perf_counter()
    with urllib.request.urlopen(url, timeout=30) as answer:
        body = answer.read()
    return time.perf_counter() - start, body


def spread_ms(seconds: Sequence[float]) -> dict[str, float]:
    """Return median, 90th percentile and maximum in milliseconds."""
    ranked = sorted(seconds)
    return {
        "median": round(statistics.median(ranked) * 1e3, 2),
        "p90": round(ranked[int(0.9 * (len(ranked) - 1))] * 1e3, 2),
        "max": round(ranked[-1] * 1e3, 2),
    }


def measure(ranks: int, rate: float, scrapes: int, idle_s: float, interval_s: float) -> dict[str, Any]:
    """Measure one exporter and return the figures."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as run_dir:
        result: dict[str, Any] = {"writer_us": writer_cost_us(run_dir)}
        write = ["--write", run_dir, "--ranks", str(ranks), "--rate", str(rate)]
        writing = subprocess.Popen([sys.executable, "-m", "glm5_mla.bench.exporter", *write], stdout=subprocess.PIPE)
        assert writing.stdout is not None
        writing.stdout.readline()
        environment = {**os.environ, "GLM5_RUN_DIR": run_dir, "GLM5_EXPORTER_PORT": "0", "GLM5_DEPLOYMENT": "bench"}
        exporter = subprocess.Popen(
            [Path(sys.executable).with_name("glm5-mla"), "exporter"],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert exporter.stderr is not None
            url = f"http://127.0.0.1:{exporter.stderr.readline().split()[-1]}"
            fetch(f"{url}/metrics")
            children = Path(f"/proc/{exporter.pid}/task/{exporter.pid}/children").read_text()
            processes = [exporter.pid, *map(int, children.split())]
            start = cpu_seconds(processes)
            answers = [fetch(f"{url}/metrics") for _ in range(scrapes)]
            metrics_cpu = cpu_seconds(processes) - start
            decode = [fetch(f"{url}/v1/decode") for _ in range(scrapes)]
            decode_cpu = cpu_seconds(processes) - start - metrics_cpu
            lines = answers[-1][1].decode().splitlines()
            result |= {
                "scrape_ms": spread_ms([seconds for seconds, _ in answers]),
                "scrape_cpu_ms": round(metrics_cpu / scrapes * 1e3, 2),
                "decode_json_ms": spread_ms([seconds for seconds, _ in decode]),
                "decode_json_cpu_ms": round(decode_cpu / scrapes * 1e3, 2),
                "series": sum(not line.startswith("#") for line in lines),
                "scrape_bytes": len(answers[-1][1]),
            }
            start, began = cpu_seconds(processes), time.monotonic()
            while time.monotonic() - began < idle_s:
                fetch(f"{url}/metrics")
                fetch(f"{url}/v1/decode")
                time.sleep(interval_s)
            used = (cpu_seconds(processes) - start) / (time.monotonic() - began)
            result |= {"cpu_percent_of_one_core": round(used * 100, 3), "memory_mib": memory_mib(processes)}
        finally:
            for process in (exporter, writing):
                process.terminate()
                process.wait()
    return result


def machine() -> dict[str, Any]:
    """Return what the figures were measured on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "load_1min": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
    }


def main() -> int:
    """Run the benchmark, print its figures and write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--rate", type=float, default=200.0, help="decode steps a second of each rank")
    parser.add_argument("--scrapes", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long it is scraped at the usual interval")
    parser.add_argument("--interval", type=float, default=5.0, help="seconds between scrapes (and operator's reads)")
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    parser.add_argument("--write", metavar="DIR", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        write_ranks(arguments.write, arguments.ranks, arguments.rate)
    before = machine()
    figures = {
        "what": "exporter of one pod: times in ms or us as named, CPU in percent of one core",
        "machine": before,
        "ranks": arguments.ranks,
        "steps_per_second_and_rank": arguments.rate,
        "scrape_interval_s": arguments.interval,
        **measure(arguments.ranks, arguments.rate, arguments.scrapes, arguments.seconds, arguments.interval),
    }
    text = json.dumps(figures, indent=2) + "\n"
    print(text, end="")
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
