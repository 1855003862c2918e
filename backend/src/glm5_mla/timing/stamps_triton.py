"""Single-thread Triton kernels that read `%globaltimer` (the GPU's clock, in nanoseconds) and keep sums.

The words of `state`: 0 executions, 1 start of this one, 2 last mark, and sums over marked layers: 3 cast, 4
attention, 5 idle, 6 of no use. A record of the ring: start, end, cast, attention, idle, number. The number is written
last, counts from 1, and makes the record valid.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda as tl_cuda

STATE = 8
RECORD = 8


@triton.jit
def _add_span(state, word: tl.constexpr):
    """Add the time since the last mark to the sum at `word`, and mark."""
    now = tl_cuda.globaltimer()
    tl.store(state + word, tl.load(state + word) + now - tl.load(state + 2))
    tl.store(state + 2, now)


@triton.jit
def stamp_start(state):
    tl.store(state + 1, tl_cuda.globaltimer())
    tl.store(state + 3, 0)
    tl.store(state + 4, 0)
    tl.store(state + 5, 0)


# The first of a pair does the work of the second, so that a span begins after as much of it as the idle one does.
@triton.jit
def stamp_mark(state):
    _add_span(state, 6)


@triton.jit
def stamp_idle(state):
    _add_span(state, 5)


@triton.jit
def stamp_cast(state):
    _add_span(state, 3)


@triton.jit
def stamp_attention(state):
    _add_span(state, 4)


@triton.jit
def stamp_end(state, ring, RING: tl.constexpr, RECORD: tl.constexpr):
    now = tl_cuda.globaltimer()
    number = tl.load(state)
    record = ring + (number % RING) * RECORD
    tl.store(record, tl.load(state + 1))
    tl.store(record + 1, now)
    tl.store(record + 2, tl.load(state + 3))
    tl.store(record + 3, tl.load(state + 4))
    tl.store(record + 4, tl.load(state + 5))
    tl.store(state, number + 1)
    # Released to the host after the words above.
    tl.atomic_xchg(record + 5, number + 1, sem="release", scope="sys")
