"""`make bench-server`: decode steps of real SGLang servers on one GPU or more, by way of serving, context and batch.

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

from glm5_mla.bench import profile, stamps
from glm5_mla.bench.numerics import numerics
from glm5_mla.bench.scrapes import scrape
from glm5_mla.bench.served import PORT_STEP, SHAPE, WAYS, Server, Way, prompts, write_model

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from glm5_mla.timing.rankreader import Snapshot

PROFILED_CONTEXTS = (8_000, 64_000)
MIDDLE = 64_000
"""Cases with a longer context come last."""
CASES = ((1, 1_000), (1, 8_000), (1, 64_000), (1, 131_072), (8, 8_000), (32, 8_000))
# Graphs for the batches of the cases alone; none for prefills, which are not measured.
GRAPHS = ("--disable-prefill-cuda-graph", "--cuda-graph-bs-decode", "1", "3", "8", "32")
SHORT = 8
SECONDS_A_CASE = 3.0
SETTLES_S = 0.2
"""After an answer the scheduler counts its last tokens, and it writes the last steps when it goes idle."""


def measure(server: Server, batch: int, context: int) -> dict[str, Any]:
    """Measure one case: a short and a long generation over the same cached prompts, after one to warm up."""
    ids = prompts(batch, context)
    server.generate(ids, SHORT)
    probe = server.generate(ids, 2 * SHORT)
    # As many steps as fit the time, not fewer than 24: the difference of the two generations cancels the prefill.
    steps = int(min(256, max(24, SECONDS_A_CASE / (probe.seconds / (2 * SHORT)))))
    ranks = range(server.way.tensor_parallel) if server.way.timing else ()
    time.sleep(SETTLES_S)
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
    time.sleep(SETTLES_S)
    after = [server.figures(rank) for rank in ranks]
    step, cast, attention = (_mean(before[0], after[0], name) for name in ("step", "cast", "attention"))
    if len(ranks) > 1:
        row["ranks"] = [
            {f"{name}_ms": _ms(_mean(first, last, name)) for name in ("step", "interval", "cast", "attention")}
            for first, last in zip(before, after, strict=True)
        ]
        row["skew_percent"] = {name: skew(row["ranks"], f"{name}_ms") for name in ("step", "attention")}
    client_tokens = short.output_tokens + long.output_tokens - 2 * batch
    interval = _mean(before[0], after[0], "interval")
    return row | {
        # Of the rank's own clock: the client's is the difference of two generations, which a slow prefill falsifies.
        "tokens_per_s": round(batch / interval, 1),
        "step_ms": _ms(step),
        "base_ms": _ms(step - cast - attention),
        "cast_ms": _ms(cast),
        "attention_ms": _ms(attention),
        "interval_ms": _ms(interval),
        "tokens_client": client_tokens,
        "tokens_exported": after[0].decode_tokens - before[0].decode_tokens,
        "graph_steps": after[0].graph_steps - before[0].graph_steps,
    }


def skew(ranks: Sequence[dict[str, float]], name: str) -> float:
    """Return by how much the slowest rank's mean is above the fastest's, in percent of the fastest's."""
    values = [rank[name] for rank in ranks]
    return round((max(values) / min(values) - 1) * 100, 2) if min(values) else 0.0


def _mean(before: Snapshot, after: Snapshot, name: str) -> float:
    first, last = before.histograms[name], after.histograms[name]
    count = last.count - first.count
    return (last.sum_s - first.sum_s) / count if count else 0.0


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 4)


def timing_cost(timed: Sequence[Server], untimed: Sequence[Server], context: int, rounds: int) -> dict[str, Any]:
    """Compare servers that differ only in the timing, by the client's time of a step.

    Every round asks each server once, in an order that turns from round to round; what counts is the difference within
    a round, so that what drifts cancels. Two servers that are the same differ too (they lie elsewhere in memory): that
    is how far the cost can be told.
    """
    steps = 256
    ids = prompts(1, context)
    servers = [*timed, *untimed]
    spans: dict[str, list[float]] = {server.way.name: [] for server in servers}
    for server in servers:
        server.generate(ids, SHORT)
    for number in range(rounds):
        turn = number // 2 % len(servers)
        order = servers[turn:] + servers[:turn]
        for server in order if number % 2 else reversed(order):
            short = server.generate(ids, SHORT)
            spans[server.way.name].append((server.generate(ids, SHORT + steps).seconds - short.seconds) / steps)
    on, off = ([spans[server.way.name] for server in side] for side in (timed, untimed))
    differences = [
        statistics.mean(with_it) - statistics.mean(without)
        for with_it, without in zip(zip(*on, strict=True), zip(*off, strict=True), strict=True)
    ]
    base = statistics.median(span for side in off for span in side)
    error = statistics.stdev(differences) / len(differences) ** 0.5 if rounds > 1 else 0.0
    medians = {name: statistics.median(found) for name, found in spans.items()}
    return {
        "context": context,
        "rounds": rounds,
        "steps": steps,
        "median_ms": {name: _ms(median) for name, median in medians.items()},
        "cost_percent": round(statistics.median(differences) / base * 100, 2),
        "standard_error_percent": round(error / base * 100, 2),
        "equal_servers_differ_percent": {
            name: round((max(found) - min(found)) / base * 100, 2)
            for name, side in (("timed", timed), ("untimed", untimed))
            for found in [[medians[server.way.name] for server in side]]
        },
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
    """Start servers side by side on the same GPUs, of which idle ones take no time; report those that don't come up."""
    begin = time.time()
    starting = [
        Server(
            way,
            write_model(work, way, args.layers),
            work,
            args.port + PORT_STEP * i,
            ["--max-total-tokens", str(way.pool or args.pool), *arguments],
        )
        for i, way in enumerate(ways)
    ]
    running = []
    try:
        for server in starting:
            try:
                server.wait(begin + args.start_limit)
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


def shapes(text: str) -> tuple[tuple[int, int], ...]:
    """Read cases such as 1x8000,32x8000: batch and context."""
    try:
        return tuple((int(batch), int(context)) for batch, context in (case.split("x") for case in text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not BATCHxCONTEXT,..., such as 1x8000,32x8000") from None


def arguments_parser() -> argparse.ArgumentParser:
    """Return the parser of the program's arguments."""
    parser = argparse.ArgumentParser(prog="bench-server", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument(
        "--wave", action="append", default=[], metavar="WAY,WAY", help=f"servers to run side by side: {', '.join(WAYS)}"
    )
    parser.add_argument("--gpus", type=int, default=1, help="tensor parallelism of every server; 8 query heads a GPU")
    parser.add_argument(
        "--port", type=int, default=30000, help=f"of the first server; the next ones' are {PORT_STEP} apart"
    )
    parser.add_argument("--layers", type=int, default=78)
    parser.add_argument("--pool", type=int, default=495_552, help="rows of the KV pool")
    parser.add_argument("--cases", type=shapes, default=CASES, metavar="BATCHxCONTEXT,...", help="what to measure")
    parser.add_argument("--start-limit", type=float, default=420, metavar="SECONDS", help="for the servers of a wave")
    parser.add_argument("--work", type=Path, help="folder for the servers' logs (default: a temporary one)")
    parser.add_argument("--numerics", action="store_true", help="errors of the kernels first")
    parser.add_argument("--stamps", action="store_true", help="what the stamps of the timing add to a graph first")
    parser.add_argument("--profile", action="append", default=[], metavar="WAY", help="compare with torch's profiler")
    parser.add_argument("--scrape", action="append", default=[], metavar="WAY", help="time the exporter with its ranks")
    parser.add_argument(
        "--timing-rounds", type=int, default=0, help="compare a wave's timed-... servers with its untimed-... ones"
    )
    parser.add_argument("--argument", action="append", default=[*GRAPHS], help="further argument for SGLang")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the arguments ask for; 1 when a server did not start or a measurement failed."""
    parser = arguments_parser()
    args = parser.parse_args(arguments)
    named = {name for wave in args.wave for name in wave.split(",")}
    for unknown in sorted((named | set(args.profile) | set(args.scrape)) - set(WAYS)):
        parser.error(f"there is no way to serve named {unknown}; there are {', '.join(WAYS)}")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    report = Report(args.out)
    report.content["model"] = {
        "layers": args.layers,
        "query_heads_a_gpu": SHAPE["num_attention_heads"],
        "hidden_size": SHAPE["hidden_size"],
        "experts": 0,
        "weights": "dummy",
        "pool_rows": args.pool,
    }
    report.content["arguments"] = args.argument
    for wanted, section, results in ((args.numerics, "numerics", numerics), (args.stamps, "stamps", stamps.cost)):
        try:
            for result in results() if wanted else ():
                report.add(section, result)
        except Exception as error:
            report.add("failures", {"section": section, "error": f"{type(error).__name__}: {error}"[-1000:]})
    with contextlib.ExitStack() as stack:
        work = args.work or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="glm5-bench-")))
        fixed = ["--load-format", "dummy", "--context-length", "200000"]
        fixed += ["--chunked-prefill-size", "8192", "--max-running-requests", "32", *args.argument]
        for wave in args.wave:
            ways = [WAYS[name]._replace(tensor_parallel=args.gpus) for name in wave.split(",")]
            servers = start(ways, work, fixed, args, report)
            try:
                run_wave(servers, work, args, report)
            finally:
                for server in servers:
                    server.stop()
    return 1 if "failures" in report.content else 0


def run_wave(servers: Sequence[Server], work: Path, args: argparse.Namespace, report: Report) -> None:
    """Measure the servers of a wave one after the other; what fails is reported and keeps nothing else from running."""

    def attempt(server: Server, section: str, measurement: Callable[..., dict[str, Any]], *arguments: Any) -> None:
        try:
            report.add(section, measurement(*arguments))
        except Exception as error:
            where = {"way": server.way.name, "section": section, "of": str(arguments[1:])}
            report.add("failures", where | {"error": f"{type(error).__name__}: {error}"[-1000:]})

    timed = [server for server in servers if server.way.name.startswith("timed-")]
    untimed = [server for server in servers if server.way.name.startswith("untimed-")]
    measured = [server for server in servers if server not in timed and server not in untimed]
    usual = min(8_000, max(context for _, context in args.cases))
    # One case with all servers after the other, long ones last: a run that is cut short has whole comparisons.
    for batch, context in (case for case in args.cases if case[1] <= MIDDLE):
        for server in measured:
            attempt(server, "rows", measure, server, batch, context)
    for server in measured:
        if server.way.name in args.scrape:
            attempt(server, "scrapes", scrape, server, usual)
        for context in (context for batch, context in args.cases if batch == 1 and context in PROFILED_CONTEXTS):
            if server.way.name in args.profile:
                attempt(server, "profiler", profile.compare, server, 1, context, work)
    if args.timing_rounds and timed and untimed:
        attempt(timed[0], "timing_cost", timing_cost, timed, untimed, usual, args.timing_rounds)
    for batch, context in (case for case in args.cases if case[1] > MIDDLE):
        for server in measured:
            attempt(server, "rows", measure, server, batch, context)


if __name__ == "__main__":
    sys.exit(main())
