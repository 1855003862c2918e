"""The per-rank file: how a rank of the server tells the exporter what its decode steps cost.

Each rank owns one memory-mapped file, ``$GLM5_RUN_DIR/rank-<n>``, and is its only writer. Any number of readers in
other processes or containers read it without asking the rank (rankreader.py). Layout, all numbers little-endian:

====================  ==================================================================================
offset                content
====================  ==================================================================================
0                     header, 64 bytes, written once: see HEADER
64                    heartbeat, u64: ``CLOCK_MONOTONIC`` in ns, renewed once a second; 0 after a clean end
128                   two info slots of 2048 bytes: sequence u64, length u32, CRC-32 u32, JSON of BackendInfo
4224                  two totals slots of ``8 * len(TOTALS)`` bytes: sequence, counters, CRC-32, each a u64
behind the totals     step ring, ``capacity`` records of ``8 * len(STEP_RING)`` bytes
behind the step ring  token ring, ``capacity`` records of ``8 * len(TOKEN_RING)`` bytes
====================  ==================================================================================

No torn reads: what changes is written to two slots in turn (or to the ring's next record), each with a sequence number
and a CRC-32. A reader takes the slot with the highest sequence whose CRC holds. Unlike a sequence lock this needs no
memory barriers, which Python does not have, and a rank that is killed in the middle of a write leaves the other slot
good.

Ring records hold running sums, not single values, so the mean over any window is the difference of two records.
Windows are cut on ``CLOCK_MONOTONIC``, which all containers of a node share and no clock adjustment moves.

A new life of a rank makes a new file and renames it over the old one: nothing of the earlier life can be read through
the name any more, and all counters begin at zero.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import threading
import time
import zlib
from array import array
from bisect import bisect_left
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

MAGIC = b"GLM5RANK"
VERSION = 1
DEFAULT_RUN_DIR = "/run/glm5"
RING_CAPACITY = 4096
HEARTBEAT_S = 1.0
DEAD_AFTER_S = 10.0
"""A rank whose heartbeat is older than this counts as dead. Long enough for a pause in which one call keeps the
interpreter's lock; short enough that a dead rank is seen before the next scrape or two."""

BUCKET_BOUNDS_NS: tuple[int, ...] = (
    *(us * 1_000 for us in (5, 10, 15, 25, 40, 65, 100, 150, 250, 400, 650)),
    *(us * 1_000 for us in (1_000, 1_500, 2_500, 4_000, 6_500, 10_000, 15_000, 25_000, 40_000, 65_000)),
    *(ms * 1_000_000 for ms in (100, 150, 250, 400, 650, 1_000, 2_500, 10_000)),
)
"""Upper bounds (inclusive) of the histogram buckets, in ns; one more bucket holds everything above. From 5 us to 1 s
neighbours are a factor of about 1.6 apart, so an interpolated quantile is within a fifth or so of the true one. The two
above are for CPUs: without them a quantile over 1 s would read as exactly 1 s."""

HISTOGRAMS = ("step", "interval", "cast", "attention")


def _totals_fields() -> tuple[str, ...]:
    histograms = [
        name
        for histogram in HISTOGRAMS
        for name in (f"{histogram}_ns", *(f"{histogram}_bucket_{i}" for i in range(len(BUCKET_BOUNDS_NS) + 1)))
    ]
    counters = ("cast_bytes", "decode_tokens", "token_records", "graph_steps", "eager_steps")
    return ("sequence", *histograms, *counters, "running_requests", "last_step_end_ns", "crc32")


TOTALS = _totals_fields()
STEP_RING = (
    "index",  # number of this step in the rank's life, from 1
    "recorded_ns",  # CLOCK_MONOTONIC when it was recorded
    "end_ns",  # wall clock at the step's end
    "step_ns",  # from here on: running sums that include this step
    "interval_ns",
    "interval_count",
    "cast_ns",
    "attention_ns",
    "cast_bytes",
    "batch",
    "kv_tokens",
    "graph_steps",
    "crc32",
)
TOKEN_RING = ("index", "recorded_ns", "decode_tokens", "crc32")

# magic, version, rank, world size, pid, start (wall clock, ns), ring capacity, number of bucket bounds, CRC-32
HEADER = struct.Struct("<8sIIIIQIII")
HEARTBEAT_AT = 64
INFO_AT = 128
INFO_SLOT = 2048
INFO_HEAD = struct.Struct("<QII")
TOTALS_AT = INFO_AT + 2 * INFO_SLOT
STEP_RING_AT = TOTALS_AT + 2 * 8 * len(TOTALS)

AT = {name: position for position, name in enumerate(TOTALS)}
"""Position of each word in a totals slot."""
HISTOGRAM_AT = {name: AT[f"{name}_ns"] for name in HISTOGRAMS}

# The same as plain names for the writer, which runs in the decode loop.
_STEP, _INTERVAL, _CAST, _ATTENTION = (HISTOGRAM_AT[name] for name in HISTOGRAMS)
_CAST_BYTES, _DECODE_TOKENS, _TOKEN_RECORDS = AT["cast_bytes"], AT["decode_tokens"], AT["token_records"]
_GRAPH_STEPS, _EAGER_STEPS = AT["graph_steps"], AT["eager_steps"]
_RUNNING_REQUESTS, _LAST_STEP_END = AT["running_requests"], AT["last_step_end_ns"]


class RankFileError(Exception):
    """A rank's file cannot be written or read; ``reason`` is one short word for metrics."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class StepRecord(NamedTuple):
    """What one decode step cost on this rank."""

    end_ns: int
    """Wall clock at the step's end, ns since 1970."""
    step_ns: int
    """Time of the decode forward: GPU time, on a CPU wall time."""
    interval_ns: int
    """From the end of the step before to the end of this one; 0 when none directly preceded (the first after idle)."""
    cast_ns: int
    """Time in passes that write converted KV to memory, summed over the layers."""
    attention_ns: int
    """Time in attention kernels, casts excluded, summed over the layers."""
    cast_bytes: int
    """Bytes that those casts wrote."""
    batch: int
    """Requests in the batch."""
    kv_tokens: int
    """KV rows in use by the batch, summed over its requests."""
    graph: bool
    """Whether the step ran as a CUDA graph."""


@dataclass(frozen=True)
class BackendInfo:
    """Which attention backend a rank runs, as it reports itself. Unknown versions are empty strings."""

    kv_cast: str
    kernel: str
    version: str
    sglang: str = ""
    flashinfer: str = ""
    torch: str = ""
    gpu: str = ""
    verified: bool = False


def rank_path(run_dir: str | os.PathLike[str], rank: int) -> Path:
    """Return the path of a rank's file."""
    return Path(run_dir) / f"rank-{rank}"


def wipe(run_dir: str | os.PathLike[str]) -> None:
    """Remove the files of an earlier life from the run directory, before the ranks of a new one start."""
    for pattern in ("rank-*", ".rank-*"):
        for path in Path(run_dir).glob(pattern):
            path.unlink(missing_ok=True)


class _Ring:
    """Writer's side of a ring of records of u64 words that end with a CRC-32."""

    def __init__(self, memory: memoryview, at: int, names: tuple[str, ...], capacity: int) -> None:
        self._memory, self._at, self._capacity = memory, at, capacity
        self._pack = struct.Struct(f"<{len(names)}Q")
        self._checked = struct.Struct(f"<{len(names) - 1}Q")

    def put(self, *words: int) -> None:
        """Write the record whose first word is its index, counted from 1."""
        crc = zlib.crc32(self._checked.pack(*words))
        self._pack.pack_into(self._memory, self._at + (words[0] - 1) % self._capacity * self._pack.size, *words, crc)


class RankWriter:
    """The writing side, one a rank. All methods may be called from any thread; each costs a few microseconds.

    Raises RankFileError if the file cannot be made or its memory not be had.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str],
        rank: int,
        world_size: int,
        info: BackendInfo,
        *,
        capacity: int = RING_CAPACITY,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.path = rank_path(run_dir, rank)
        self._clock = clock
        self._lock = threading.Lock()
        self._totals = array("Q", [0] * len(TOTALS))
        self._totals_bytes = memoryview(self._totals).cast("B")
        self._checked_bytes = self._totals_bytes[:-8]
        self._steps = self._info_puts = 0
        self._batch = self._kv_tokens = self._interval_count = 0

        token_ring_at = STEP_RING_AT + capacity * 8 * len(STEP_RING)
        size = token_ring_at + capacity * 8 * len(TOKEN_RING)
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        except OSError as error:
            raise RankFileError(
                f"cannot make {self.path}: {error.strerror}; mount a writable directory there or set GLM5_RUN_DIR",
                "unwritable",
            ) from error
        try:
            os.fchmod(descriptor, 0o644)  # the exporter may run as another user, whatever this process's umask
            # Reserved now: on a full tmpfs a sparse file would kill the server with SIGBUS at some later step.
            os.posix_fallocate(descriptor, 0, size)
            self._map = mmap.mmap(descriptor, size)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise RankFileError(
                f"cannot reserve {size} bytes for {self.path}: {error.strerror}; give the volume at {self.path.parent}"
                f" at least {size >> 20} MiB a rank",
                "unwritable",
            ) from error
        finally:
            os.close(descriptor)

        memory = memoryview(self._map)
        self._memory = memory
        head = HEADER.pack(
            MAGIC, VERSION, rank, world_size, os.getpid(), time.time_ns(), capacity, len(BUCKET_BOUNDS_NS), 0
        )[:-4]
        memory[: len(head) + 4] = head + struct.pack("<I", zlib.crc32(head))
        # A native 8-byte store, so that a reader sees the old beat or the new one and nothing in between.
        self._heartbeat = memory[HEARTBEAT_AT : HEARTBEAT_AT + 8].cast("Q")
        totals_size = len(self._totals_bytes)
        self._slots = tuple(memory[TOTALS_AT + i * totals_size : TOTALS_AT + (i + 1) * totals_size] for i in range(2))
        self._step_ring = _Ring(memory, STEP_RING_AT, STEP_RING, capacity)
        self._token_ring = _Ring(memory, token_ring_at, TOKEN_RING, capacity)
        self.set_info(info)
        self._publish()
        self._heartbeat[0] = clock()
        os.replace(temporary, self.path)

        self._ended = threading.Event()
        self._beater = threading.Thread(target=self._beat, name="glm5-heartbeat", daemon=True)
        self._beater.start()

    def record(self, step: StepRecord) -> None:
        """Add one decode step. Raises ValueError, and counts nothing, if a number is negative."""
        if min(step) < 0:
            raise ValueError(f"a negative number in {step}")
        end_ns, step_ns, interval_ns, cast_ns, attention_ns, cast_bytes, batch, kv_tokens, graph = step
        with self._lock:
            totals = self._totals
            totals[_STEP] += step_ns
            totals[_STEP + 1 + bisect_left(BUCKET_BOUNDS_NS, step_ns)] += 1
            totals[_CAST] += cast_ns
            totals[_CAST + 1 + bisect_left(BUCKET_BOUNDS_NS, cast_ns)] += 1
            totals[_ATTENTION] += attention_ns
            totals[_ATTENTION + 1 + bisect_left(BUCKET_BOUNDS_NS, attention_ns)] += 1
            if interval_ns:
                totals[_INTERVAL] += interval_ns
                totals[_INTERVAL + 1 + bisect_left(BUCKET_BOUNDS_NS, interval_ns)] += 1
                self._interval_count += 1
            totals[_CAST_BYTES] += cast_bytes
            totals[_GRAPH_STEPS if graph else _EAGER_STEPS] += 1
            totals[_LAST_STEP_END] = end_ns
            self._steps += 1
            self._batch += batch
            self._kv_tokens += kv_tokens
            self._step_ring.put(
                self._steps,
                self._clock(),
                end_ns,
                totals[_STEP],
                totals[_INTERVAL],
                self._interval_count,
                totals[_CAST],
                totals[_ATTENTION],
                totals[_CAST_BYTES],
                self._batch,
                self._kv_tokens,
                totals[_GRAPH_STEPS],
            )
            self._publish()

    def add_tokens(self, tokens: int) -> None:
        """Count tokens that a decode step gave to requests (not the first of a request: that comes from prefill)."""
        if not tokens:
            return
        with self._lock:
            totals = self._totals
            totals[_DECODE_TOKENS] += tokens
            totals[_TOKEN_RECORDS] += 1
            self._token_ring.put(totals[_TOKEN_RECORDS], self._clock(), totals[_DECODE_TOKENS])
            self._publish()

    def set_running(self, requests: int) -> None:
        """Say how many requests the scheduler is running; free of cost when the number has not changed."""
        if requests == self._totals[_RUNNING_REQUESTS]:
            return
        with self._lock:
            self._totals[_RUNNING_REQUESTS] = requests
            self._publish()

    def set_info(self, info: BackendInfo) -> None:
        """Replace what this rank says of its backend."""
        body = json.dumps(asdict(info)).encode()
        room = INFO_SLOT - INFO_HEAD.size
        if len(body) > room:
            raise RankFileError(f"backend information of {len(body)} bytes does not fit into {room}", "unwritable")
        with self._lock:
            self._info_puts += 1
            at = INFO_AT + self._info_puts % 2 * INFO_SLOT
            crc = zlib.crc32(body, self._info_puts)
            self._memory[at : at + INFO_HEAD.size + len(body)] = INFO_HEAD.pack(self._info_puts, len(body), crc) + body

    def close(self) -> None:
        """End the rank's life: readers see it as ended at once. The file stays for a look afterwards."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._beater.join()
        self._heartbeat[0] = 0

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT_S):
            self._heartbeat[0] = self._clock()

    def _publish(self) -> None:
        totals = self._totals
        totals[0] += 1
        totals[-1] = zlib.crc32(self._checked_bytes)
        self._slots[totals[0] & 1][:] = self._totals_bytes
