"""Times decode forwards on the GPU: stamps inside the captured graph read the GPU's clock.

A stamp (`stamps_triton`) adds to a few words of device memory. The last one of a forward writes the sums to a ring in
pinned host memory, from which the scheduler's thread picks them up whenever it comes by: nothing waits for the device,
and a replayed graph stamps like an eager forward.

A stamp costs about 2 us of the forward, so only `WATCHED_LAYERS` layers are marked and their times are scaled up: all
layers of a model do the same work on the same rows. What two stamps cost with nothing between them is measured at the
start and taken off every marked span.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from glm5_mla.timing import stamps_triton as stamps
from glm5_mla.timing.clock import Reading

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WATCHED_LAYERS = 2
RING = 1024
"""Forwards that may finish before the scheduler comes by; older ones would be lost."""


class DeviceClock:
    """`StepClock` of one GPU. `layers` are the model's attention layers on this rank."""

    def __init__(self, layers: Sequence[int]) -> None:
        self.executions = 0
        count = min(WATCHED_LAYERS, len(layers))
        # Evenly spread, first and last not favoured: the middles of `count` equal parts.
        self._watched = frozenset(layers[(2 * i + 1) * len(layers) // (2 * count)] for i in range(count))
        self._scale = len(layers) / count
        self._running = False
        self._next = 0
        self._state = torch.zeros(stamps.STATE, dtype=torch.int64, device="cuda")
        self._ring = torch.zeros((RING, stamps.RECORD), dtype=torch.int64, pin_memory=True)
        self._host_view = self._ring.numpy()
        self._idle_span = self._measure_idle_span()

    def start(self) -> None:
        """See `StepClock`."""
        self._running = True
        stamps.stamp_start[(1,)](self._state, num_warps=1)

    def end(self) -> None:
        """See `StepClock`."""
        self._running = False
        stamps.stamp_end[(1,)](self._state, self._ring, RING=RING, RECORD=stamps.RECORD, num_warps=1)
        if not torch.cuda.is_current_stream_capturing():
            self.executions += 1

    def replayed(self) -> None:
        """See `StepClock`."""
        self.executions += 1

    def watches(self, layer: int) -> bool:
        """See `StepClock`."""
        return self._running and layer in self._watched

    def mark_begin(self) -> None:
        """See `StepClock`."""
        stamps.stamp_mark[(1,)](self._state, num_warps=1)

    def mark_cast(self) -> None:
        """See `StepClock`."""
        stamps.stamp_cast[(1,)](self._state, num_warps=1)

    def mark_attention(self) -> None:
        """See `StepClock`."""
        stamps.stamp_attention[(1,)](self._state, num_warps=1)

    def readings(self) -> Iterator[Reading]:
        """See `StepClock`."""
        while True:
            start, end, cast, attention, number, *_ = self._host_view[self._next % RING].tolist()
            if number <= self._next:
                return
            self._next = number
            yield Reading(number - 1, start, end, self._scaled(cast), self._scaled(attention))

    def _scaled(self, span_sum: int) -> int:
        """Scale the sum over the watched layers to all layers, less what the stamps themselves add."""
        if span_sum == 0:
            return 0
        return max(0, round((span_sum - len(self._watched) * self._idle_span) * self._scale))

    def _measure_idle_span(self) -> float:
        """Nanoseconds between two stamps in a graph with nothing between them: the mean over many pairs."""
        pairs, replays = 64, 8
        for stamp in (self.start, self.mark_begin, self.mark_cast, self.mark_attention, self.end):  # compile
            stamp()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            stamps.stamp_start[(1,)](self._state, num_warps=1)
            for _ in range(pairs):
                self.mark_begin()
                self.mark_attention()
        spans = []
        for _ in range(replays):
            graph.replay()
            torch.cuda.synchronize()
            spans.append(int(self._state[stamps.ATTENTION].item()) / pairs)
        return sorted(spans)[replays // 2]
