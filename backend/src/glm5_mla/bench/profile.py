"""Compares what a rank exports with a trace of torch's profiler over the same steps.

The stamps of the step timing are kernels themselves and show in the trace: the kernels between the marks of a watched
layer are that layer's cast and attention, and by their names and grids the other layers' are found.
"""

from __future__ import annotations

import bisect
import gzip
import json
import statistics
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from glm5_mla.bench.served import prompts

if TYPE_CHECKING:
    from pathlib import Path

    from glm5_mla.bench.served import Server

STEPS = 48


class Kernel(NamedTuple):
    """One kernel of a trace; times in microseconds."""

    start: float
    duration: float
    name: str
    grid: str


def compare(server: Server, batch: int, context: int, work: Path) -> dict[str, Any]:
    """Trace all steps of a generation and set what was exported of them beside the trace: both are slowed alike."""
    ids = prompts(batch, context)
    server.generate(ids, 8)
    time.sleep(0.3)
    folder = work / f"profile-{server.way.name}-{batch}-{context}"
    folder.mkdir()
    before = server.figures()
    server.start_profile(folder, STEPS + 1)  # its prefill and its decode steps
    server.generate(ids, STEPS)
    time.sleep(0.5)
    after = server.figures()
    server.generate(ids, 8)  # the profiler stops and writes when it has seen enough forwards
    trace = _wait_for_trace(folder)
    found = kernels(trace)
    traced = figures(found)
    result: dict[str, Any] = {
        "way": server.way.name,
        "batch": batch,
        "context": context,
        "traced_steps": traced["steps"],
    }
    for name in ("step", "cast", "attention"):
        first, last = before.histograms[name], after.histograms[name]
        exported = (last.sum_s - first.sum_s) / max(1, last.count - first.count) * 1e3
        result[f"{name}_ms_exported"] = round(exported, 4)
        result[f"{name}_ms_profiler"] = round(traced[name], 4)
        if traced[name]:
            result[f"{name}_difference_percent"] = round((exported - traced[name]) / traced[name] * 100, 2)
        with_pauses = traced.get(f"{name}_with_pauses")
        if with_pauses:
            result[f"{name}_ms_profiler_with_pauses"] = round(with_pauses, 4)
            result[f"{name}_with_pauses_difference_percent"] = round((exported - with_pauses) / with_pauses * 100, 2)
            result[f"{name}_us"] = spans(found, name)
    return result


def _wait_for_trace(folder: Path) -> Path:
    for _ in range(120):
        files = list(folder.rglob("*-TP-0*.json.gz"))
        if files:
            time.sleep(1.0)  # it may still be written
            return files[0]
        time.sleep(0.5)
    raise RuntimeError(f"torch's profiler left no trace in {folder}")


def kernels(trace: Path) -> list[Kernel]:
    """Read the GPU kernels of a Chrome trace, in the order of their start."""
    with gzip.open(trace) as file:
        events = json.load(file)["traceEvents"]
    found = [
        Kernel(event["ts"], event["dur"], event["name"], str(event.get("args", {}).get("grid")))
        for event in events
        if event.get("cat") == "kernel"
    ]
    return sorted(found)


def figures(found: list[Kernel]) -> dict[str, float]:
    """Return means over the whole steps of a trace: `steps`, and in milliseconds `step`, `cast`, `attention`.

    `attention_with_pauses` is from the end of the kernel before a layer's attention to the start of the one after it:
    what two stamps around it enclose, of which one pause between stamps is taken off before it is exported. The pauses
    are those of the layers without stamps. So is `cast_with_pauses`.
    """
    steps, role = _steps(found), _roles(found)
    sums: dict[str, float] = defaultdict(float)
    for start, end in steps:
        sums["step"] += found[end].start + found[end].duration - found[start].start
        for kernel in found[start : end + 1]:
            sums[role.get((kernel.name, kernel.grid), "other")] += kernel.duration
    count = max(1, len(steps))
    means = {name: sums[name] / count / 1e3 for name in ("step", "cast", "attention")}
    for name in ("cast", "attention"):
        found_spans = _spans(found, name)
        plain = [span for span in found_spans if not span.watched]
        if plain:
            pauses = sum(statistics.median(getattr(span, field) for span in plain) for field in ("before", "after"))
            means[f"{name}_with_pauses"] = means[name] + len(found_spans) / count * pauses / 1e3
    return {"steps": len(steps), **means}


class Span(NamedTuple):
    """A layer's attention or cast in a trace, in microseconds: its kernels, and the pauses before and after them."""

    watched: bool
    """Whether stamps stand around it."""
    before: float
    kernels: float
    after: float


def spans(found: list[Kernel], name: str) -> dict[str, dict[str, float]]:
    """Return the medians of what `Span` holds of "attention" or "cast", for layers with stamps and for the others."""
    return {
        which: {field: round(statistics.median(getattr(span, field) for span in some), 2) for field in Span._fields[1:]}
        for which, watched in (("watched", True), ("other", False))
        if (some := [span for span in _spans(found, name) if span.watched is watched])
    }


def _spans(found: list[Kernel], name: str) -> list[Span]:
    role = _roles(found)
    spans = []
    for start, end in _steps(found):
        at = start + 1
        while at < end:
            first = at
            while at < end and role.get((found[at].name, found[at].grid)) == name:
                at += 1
            if at == first:
                at += 1
                continue
            previous, last, after = found[first - 1], found[at - 1], found[at]
            spans.append(
                Span(
                    watched="stamp" in previous.name,
                    before=found[first].start - previous.start - previous.duration,
                    kernels=last.start + last.duration - found[first].start,
                    after=after.start - last.start - last.duration,
                )
            )
    return spans


def _steps(found: list[Kernel]) -> list[tuple[int, int]]:
    """Return where the whole steps of a trace begin and end."""
    ends = [i for i, kernel in enumerate(found) if "stamp_end" in kernel.name]
    steps = []
    for start in (i for i, kernel in enumerate(found) if "stamp_start" in kernel.name):
        at = bisect.bisect(ends, start)
        if at < len(ends):
            steps.append((start, ends[at]))
    return steps


def _roles(found: list[Kernel]) -> dict[tuple[str, str], str]:
    """Return which kernels, by name and grid, are cast and attention: those between the marks of a watched layer."""
    role: dict[tuple[str, str], str] = {}
    for start, end in _steps(found)[:1]:
        pending: list[tuple[str, str]] | None = None
        for kernel in found[start : end + 1]:
            if "stamp_idle" in kernel.name:  # the last in front of a watched layer
                pending = []
            elif "stamp_cast" in kernel.name or "stamp_attention" in kernel.name:
                for key in pending or []:
                    role[key] = "cast" if "stamp_cast" in kernel.name else "attention"
                pending = [] if "stamp_cast" in kernel.name else None
            elif pending is not None:
                pending.append((kernel.name, kernel.grid))
    return role
