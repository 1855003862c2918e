"""`make bench-server`: decode steps of real SGLang servers on one GPU, by way of serving, context and batch.

Every figure is taken from a server in which the backend is loaded as in production. Times of a step come from what the
rank exported over the run (sum over count); the client's own clock stands beside them, and the client's tokens are
compared with the exported count. SGLang's own Triton backend exports nothing: its step is the client's.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glm5_mla.bench import profile
from glm5_mla.bench.numerics import numerics
from glm5_mla.bench.served import WAYS, Server, Way, prompts, write_model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from glm5_mla.timing.rankreader import Snapshot

CASES = ((1, 1_000), (1, 8_000), (1, 64_000), (1, 131_072), (8, 8_000), (32, 8_000))
SHORT = 8
SECONDS_A_CASE = 3.0


def measure(server: Server, batch: int, context: int) -> dict[str, Any]:
    """Measure one case: a short and a long generation over the same cached prompts, after one to warm up."""
    ids = prompts(batch, context)
    server.generate(ids, SHORT)
    probe = server.generate(ids, 2 * SHORT)
    # As many steps as fit the time, not fewer than 24: the difference of the two generations cancels the prefill.
    steps = int(min(256, max(24, SECONDS_A_CASE / (probe.seconds / (2 * SHORT)))))
    ranks = range(server.way.tensor_parallel) if server.way.timing else ()
    before = [server.figures(rank) for rank in ranks]
    short = server.generate(ids, SHORT)
    long = server.generate(ids, SHORT + steps)
    client_step = (long.seconds - short.seconds) / steps
    row: dict[str, Any] = {
        "kv_cast": server.way.kv_cast,
        "kernel": server.way.kernel,
        "gpus": server.way.tensor_parallel,
        "batch": batch,
        "context": context,
        "steps": steps,
        "client_step_ms": _ms(client_step),
        "tokens_per_s": round(batch / client_step, 1),
        "cached_tokens": long.cached_tokens,
    }
    if not before:
        return row | {"step_ms": _ms(client_step), "base_ms": None, "cast_ms": None, "attention_ms": None}
    time.sleep(0.2)  # the scheduler writes the last steps when it goes idle
    after = [server.figures(rank) for rank in ranks]
    step, cast, attention = (_mean(before[0], after[0], name) for name in ("step", "cast", "attention"))
    if len(ranks) > 1:
        row["ranks"] = [
            {f"{name}_ms": _ms(_mean(first, last, name)) for name in ("step", "interval", "cast", "attention")}
            for first, last in zip(before, after, strict=True)
        ]
    client_tokens = short.output_tokens + long.output_tokens - 2 * batch
    return row | {
        "step_ms": _ms(step),
        "base_ms": _ms(step - cast - attention),
        "cast_ms": _ms(cast),
        "attention_ms": _ms(attention),
        "interval_ms": _ms(_mean(before[0], after[0], "interval")),
        "tokens_client": client_tokens,
        "tokens_exported": after[0].decode_tokens - before[0].decode_tokens,
        "graph_steps": after[0].graph_steps - before[0].graph_steps,
    }


def _mean(before: Snapshot, after: Snapshot, name: str) -> float:
    first, last = before.histograms[name], after.histograms[name]
    count = last.count - first.count
    return (last.sum_s - first.sum_s) / count if count else 0.0


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 4)


def timing_cost(timed: Server, untimed: Server, context: int, rounds: int) -> dict[str, Any]:
    """Compare two servers that differ only in the timing, request by request in turn: the client's time of a step."""
    steps = 192
    ids = prompts(1, context)
    spans: dict[str, list[float]] = {"on": [], "off": []}
    for server in (timed, untimed):
        server.generate(ids, SHORT)
    for _ in range(rounds):
        for which, server in (("on", timed), ("off", untimed)):
            short = server.generate(ids, SHORT)
            spans[which].append((server.generate(ids, SHORT + steps).seconds - short.seconds) / steps)
    on, off = (statistics.median(spans[which]) for which in ("on", "off"))
    return {
        "way": timed.way.name,
        "context": context,
        "rounds": rounds,
        "on_ms": _ms(on),
        "off_ms": _ms(off),
        "cost_percent": round((on - off) / off * 100, 2),
        "spread_percent": round((max(spans["off"]) - min(spans["off"])) / off * 100, 2),
    }


def machine() -> dict[str, str]:
    """Describe what the figures were taken on."""
    import torch

    if not torch.cuda.is_available():
        return {"gpu": "none"}
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "memory_gib": f"{properties.total_memory / 2**30:.0f}",
        "multiprocessors": str(properties.multi_processor_count),
        "cuda": str(torch.version.cuda),
    }


def versions() -> dict[str, str]:
    """Return the versions of what took part."""
    found = {}
    for name in ("glm5-mla", "sglang", "flashinfer-python", "torch", "triton"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


class Report:
    """The results so far, written to the file after every one: a run that is cut short keeps what it has."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.content: dict[str, Any] = {
            "machine": machine(),
            "versions": versions(),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "rows": [],
        }

    def add(self, section: str, result: dict[str, Any]) -> None:
        """Add a result, print it and save."""
        self.content.setdefault(section, []).append(result)
        print(section, json.dumps(result), flush=True)
        self._path.write_text(json.dumps(self.content, indent=1) + "\n")


def start(
    ways: Sequence[Way], work: Path, arguments: Sequence[str], args: argparse.Namespace, report: Report
) -> list[Server]:
    """Start servers side by side on the GPU (idle ones take none of its time); report those that don't come up."""
    begin = time.time()
    starting = [
        Server(way, write_model(work, way, args.layers), work, args.port + 1000 * i, arguments)
        for i, way in enumerate(ways)
    ]
    running = []
    try:
        for server in starting:
            try:
                server.wait(begin + 420)
                running.append(server)
                print(f"{server.way.name} up after {time.time() - begin:.0f} s", flush=True)
            except RuntimeError as error:
                report.add("failures", {"way": server.way.name, "error": str(error)[-3000:]})
                server.stop()
    except BaseException:  # interrupted: they would outlive this process
        for server in starting:
            server.stop()
        raise
    return running


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the arguments ask for; 1 when a server did not start."""
    parser = argparse.ArgumentParser(prog="bench-server", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument(
        "--wave", action="append", default=[], metavar="WAY,WAY", help=f"servers to run side by side: {', '.join(WAYS)}"
    )
    parser.add_argument("--port", type=int, default=30000, help="of the first server; the next ones' are 1000 apart")
    parser.add_argument("--layers", type=int, default=78)
    parser.add_argument("--pool", type=int, default=495_552, help="rows of the KV pool")
    parser.add_argument("--max-context", type=int, default=131_072, help="leave out longer cases")
    parser.add_argument("--max-batch", type=int, default=32, help="leave out larger cases")
    parser.add_argument("--numerics", action="store_true", help="errors of the kernels first")
    parser.add_argument("--profile", action="append", default=[], metavar="WAY", help="compare with torch's profiler")
    parser.add_argument(
        "--timing-rounds", type=int, default=0, help="compare a wave's timed server with its untimed one"
    )
    parser.add_argument("--argument", action="append", default=[], help="further argument for SGLang")
    args = parser.parse_args(arguments)
    report = Report(args.out)
    if args.numerics:
        for result in numerics():
            report.add("numerics", result)
    with tempfile.TemporaryDirectory(prefix="glm5-bench-") as folder:
        work = Path(folder)
        fixed = ["--load-format", "dummy", "--max-total-tokens", str(args.pool)]
        fixed += ["--context-length", "200000"]
        fixed += ["--chunked-prefill-size", "8192", "--max-running-requests", "32", *args.argument]
        for wave in args.wave:
            servers = start([WAYS[name] for name in wave.split(",")], work, fixed, args, report)
            try:
                run_wave(servers, work, args, report)
            finally:
                for server in servers:
                    server.stop()
    return 1 if "failures" in report.content else 0


def run_wave(servers: Sequence[Server], work: Path, args: argparse.Namespace, report: Report) -> None:
    """Measure the servers of a wave one after the other."""
    for server in servers:
        if server.way.name.startswith("untimed"):
            continue
        for batch, context in CASES:
            if batch <= args.max_batch and context <= args.max_context:
                report.add("rows", measure(server, batch, context))
        if server.way.name in args.profile:
            for batch, context in ((1, 8_000), (1, 64_000)):
                if context <= args.max_context:
                    report.add("profiler", profile.compare(server, batch, context, work))
        for untimed in servers:
            if args.timing_rounds and untimed.way == server.way._replace(name=untimed.way.name, timing=False):
                report.add(
                    "timing_cost", timing_cost(server, untimed, min(8_000, args.max_context), args.timing_rounds)
                )


if __name__ == "__main__":
    sys.exit(main())
