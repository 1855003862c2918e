"""What a clock of decode steps does, and the one for devices on which every call is finished when it returns."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator


class Reading(NamedTuple):
    """One execution of the model's decode forward. Times in nanoseconds; `start` and `end` on the clock's own scale."""

    number: int
    """Counts the executions on this clock from 0, those of warm-ups included."""
    start: int
    end: int
    cast: int
    attention: int


class StepClock(Protocol):
    """Times decode forwards. `start` and `end` bracket the model; the marks come from the attention backend.

    In a CUDA graph these calls run once, at capture, and what they enqueue runs at every replay: the caller says so by
    `replayed`, so that `executions` stays the number of the next reading.
    """

    executions: int
    """Executions started so far, replays included."""

    def start(self) -> None:
        """Begin a decode forward."""

    def end(self) -> None:
        """End it; its reading becomes visible to `readings` when the device gets there."""

    def replayed(self) -> None:
        """Count one replay of a captured forward."""

    def watches(self, layer: int) -> bool:
        """Whether layer `layer` is to be marked in the forward under way (False outside of one)."""

    def mark_begin(self) -> None:
        """Begin a watched layer's attention: what follows counts as cast until `mark_cast`, else as attention."""

    def mark_cast(self) -> None:
        """End the cast; what follows is attention."""

    def mark_attention(self) -> None:
        """End the attention."""

    def readings(self) -> Iterator[Reading]:
        """Yield the readings that came in since the last call, without waiting for the device."""


class HostClock:
    """For a CPU: the calls themselves are timed, every layer is watched."""

    def __init__(self) -> None:
        self.executions = 0
        self._running = False
        self._start = self._mark = self._cast = self._attention = 0
        self._done: list[Reading] = []

    def start(self) -> None:
        """See `StepClock`."""
        self._running = True
        self._cast = self._attention = 0
        self._start = time.perf_counter_ns()

    def end(self) -> None:
        """See `StepClock`."""
        now = time.perf_counter_ns()
        self._running = False
        self._done.append(Reading(self.executions, self._start, now, self._cast, self._attention))
        self.executions += 1

    def replayed(self) -> None:
        """Do nothing: a CPU has no graphs to replay."""

    def watches(self, layer: int) -> bool:
        """See `StepClock`."""
        del layer
        return self._running

    def mark_begin(self) -> None:
        """See `StepClock`."""
        self._mark = time.perf_counter_ns()

    def mark_cast(self) -> None:
        """See `StepClock`."""
        now = time.perf_counter_ns()
        self._cast += now - self._mark
        self._mark = now

    def mark_attention(self) -> None:
        """See `StepClock`."""
        self._attention += time.perf_counter_ns() - self._mark

    def readings(self) -> Iterator[Reading]:
        """See `StepClock`."""
        done, self._done = self._done, []
        return iter(done)
