"""Times decode forwards on the GPU: stamps inside the captured graph read the GPU's clock.

A stamp (`stamps_triton`) adds to a few words of device memory. The last one of a forward writes the sums to a ring in
pinned host memory, from which the scheduler's thread picks them up whenever it comes by: nothing waits for the device,
and a replayed graph stamps like an eager forward.

A stamp costs 1 to 2 us of the forward, so only `WATCHED_LAYERS` layers are marked and their times are scaled up: all
layers of a model do the same work on the same rows. In front of each marked layer stand two stamps with nothing between
them; what they are apart is taken off that forward's spans, whatever slows launches down (a profiler does). What is
left of a span is its kernels' time with the pauses before and after them, but for one pause between two stamps.
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
        self._compile()

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
        stamps.stamp_idle[(1,)](self._state, num_warps=1)

    def mark_cast(self) -> None:
        """See `StepClock`."""
        stamps.stamp_cast[(1,)](self._state, num_warps=1)

    def mark_attention(self) -> None:
        """See `StepClock`."""
        stamps.stamp_attention[(1,)](self._state, num_warps=1)

    def readings(self) -> Iterator[Reading]:
        """See `StepClock`."""
        while True:
            start, end, cast, attention, idle, number, *_ = self._host_view[self._next % RING].tolist()
            if number <= self._next:
                return
            self._next = number
            yield Reading(number - 1, start, end, self._scaled(cast, idle), self._scaled(attention, idle))

    def _scaled(self, span_sum: int, idle: int) -> int:
        """Scale the sum over the watched layers to all layers, less what the stamps themselves add."""
        return max(0, round((span_sum - idle) * self._scale))

    def _compile(self) -> None:
        """Run every stamp once: a capture can't compile them."""
        for stamp in (self.start, self.mark_begin, self.mark_cast, self.mark_attention, self.end):
            stamp()
