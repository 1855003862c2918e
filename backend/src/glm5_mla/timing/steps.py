"""Joins what the clock measured with what the scheduler knew, and writes it to the rank's file.

Everything here runs in the scheduler's thread, a few microseconds a step: after a forward was launched its number and
what the host knows of it are kept; when the scheduler processes a result, the readings that have come in are written.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from glm5_mla.timing.rankfile import StepRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from glm5_mla.timing.clock import StepClock


class Launched(NamedTuple):
    """What the host knows of a decode forward that it launched."""

    batch: int
    kv_tokens: int
    """Rows that the batch attends to, this step's own included."""
    graph: bool
    cast_bytes: int
    follows: bool
    """The forward before it was a decode forward too, and the scheduler wasn't idle in between."""


class StepWriter(Protocol):
    """The part of `RankWriter` that steps use."""

    def record(self, step: StepRecord) -> None:
        """Add one step."""

    def add_tokens(self, count: int) -> None:
        """Add tokens given to requests by decode steps."""

    def set_running(self, requests: int) -> None:
        """Set the number of requests that are being decoded."""


class StepTimer:
    """One rank's decode steps."""

    def __init__(self, clock: StepClock, writer: StepWriter) -> None:
        self.clock = clock
        self._writer = writer
        self._launched: deque[tuple[int, Launched]] = deque()
        self._unbroken = False
        self._last_end: tuple[int, int] = (-1, 0)
        self._running = 0

    def launched(self, batch: int, kv_tokens: int, graph: bool, cast_bytes: int) -> None:
        """Note the decode forward that was launched last; `clock.executions` counts it already."""
        number = self.clock.executions - 1
        self._launched.append((number, Launched(batch, kv_tokens, graph, cast_bytes, self._unbroken)))
        self._unbroken = True

    def interrupted(self) -> None:
        """Note that something else than a decode forward ran: the time until the next one is not an interval."""
        self._unbroken = False

    def idle(self) -> None:
        """Note a pass of the scheduler without work."""
        self._unbroken = False
        self._write_readings()
        self._set_running(0)

    def processed(self, requests: Sequence[Any], before: Sequence[int], decoding: bool) -> None:
        """Count what a result gave to `requests`, which had `before` output tokens each, and write what came in.

        `decoding` tells a decode batch, whose unfinished requests are the ones running, from a prefill batch.

        A request's first output token comes from prefill and is not counted; every later one is, wherever it was
        computed (a decode batch, a mixed batch, the new prefill of a request that had been retracted).
        """
        tokens = running = 0
        for request, had in zip(requests, before, strict=True):
            has = output_length(request)
            if has > had:
                tokens += has - max(had, 1)
            if not request.finished():
                running += 1
        if tokens:
            self._writer.add_tokens(tokens)
        if decoding:
            self._set_running(running)
        self._write_readings()

    def _set_running(self, running: int) -> None:
        if running != self._running:
            self._running = running
            self._writer.set_running(running)

    def _write_readings(self) -> None:
        for reading in self.clock.readings():
            launched = self._of(reading.number)
            last_number, last_end = self._last_end
            self._last_end = (reading.number, reading.end)
            if launched is None:  # a warm-up run: not a step of the scheduler's
                continue
            follows = launched.follows and last_number == reading.number - 1
            self._writer.record(
                StepRecord(
                    end_ns=time.time_ns(),
                    step_ns=max(0, reading.end - reading.start),
                    interval_ns=max(0, reading.end - last_end) if follows else 0,
                    cast_ns=reading.cast,
                    attention_ns=reading.attention,
                    cast_bytes=launched.cast_bytes,
                    batch=launched.batch,
                    kv_tokens=launched.kv_tokens,
                    graph=launched.graph,
                )
            )

    def _of(self, number: int) -> Launched | None:
        """Take what is known of execution `number`, and drop what is known of earlier ones, whose readings are lost."""
        while self._launched and self._launched[0][0] < number:
            self._launched.popleft()
        if self._launched and self._launched[0][0] == number:
            return self._launched.popleft()[1]
        return None


def output_length(request: Any) -> int:
    """Count a request's output tokens as its client gets them: up to the stop, if it has stopped."""
    finished: int | None = request.finished_len
    return len(request.output_ids) if finished is None else finished
