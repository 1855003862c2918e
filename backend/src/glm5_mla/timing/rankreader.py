"""Reading the per-rank files (their format: rankfile.py)."""

from __future__ import annotations

import json
import os
import struct
import time
import zlib
from bisect import bisect_right
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from .rankfile import (
    AT,
    BUCKET_BOUNDS_NS,
    DEAD_AFTER_S,
    HEADER,
    HEARTBEAT_AT,
    HISTOGRAM_AT,
    HISTOGRAMS,
    INFO_AT,
    INFO_HEAD,
    INFO_SLOT,
    MAGIC,
    STEP_RING,
    STEP_RING_AT,
    TOKEN_RING,
    TOTALS,
    TOTALS_AT,
    VERSION,
    BackendInfo,
    RankFileError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_NS = 1_000_000_000
_RECORD_HEAD = struct.Struct("<2Q")
"""The first words of a record in either ring: index and recorded_ns."""
_ATTEMPTS = 5


@dataclass(frozen=True)
class Histogram:
    """A histogram of durations, over a rank's life."""

    sum_s: float
    buckets: tuple[int, ...]
    """Observations per bucket (not cumulative); one more than BUCKET_BOUNDS_NS has bounds."""

    @property
    def count(self) -> int:
        """Return the number of observations."""
        return sum(self.buckets)


@dataclass(frozen=True)
class Window:
    """The last ``seconds`` seconds: counts, and means over the window's steps, which are None when there was none."""

    seconds: float
    steps: int
    tokens: int
    step_s: float | None
    interval_s: float | None
    cast_s: float | None
    attention_s: float | None
    batch: float | None
    kv_tokens: float | None

    @property
    def tokens_per_second(self) -> float:
        """Return tokens over the whole window, its idle part included."""
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Snapshot:
    """One consistent reading of a rank's file. Counters are over the rank's life."""

    rank: int
    world_size: int
    pid: int
    start_time_s: float
    """Wall clock at the start of the rank's life."""
    alive: bool
    """Whether the rank's heartbeat is fresh."""
    info: BackendInfo
    histograms: Mapping[str, Histogram]
    """By the names in rankfile.HISTOGRAMS."""
    cast_bytes: int
    decode_tokens: int
    graph_steps: int
    eager_steps: int
    running_requests: int
    last_step_end_s: float | None
    """Wall clock at the end of the last step, None before the first."""
    window: Window


class _LappedError(Exception):
    """The writer overtook this read; reading again gives a whole picture."""


class RankReader:
    """Reads one rank's file. Holds nothing open between reads, so a file that was replaced is read anew.

    Files are read with ``pread`` and not mapped: one that is cut short gives an error here, not a SIGBUS.
    """

    def __init__(self, path: str | os.PathLike[str], *, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.path = Path(path)
        self._clock = clock

    def read(self, window_s: float = 10.0) -> Snapshot:
        """Return one consistent reading, with the window over the last ``window_s`` seconds.

        Raises FileNotFoundError if there is no file, RankFileError if it is not a whole rank file of this version.
        """
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
            try:
                return self._read(descriptor, window_s)
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise RankFileError(f"{self.path} cannot be read: {error.strerror}", "unreadable") from error

    def _read(self, descriptor: int, window_s: float) -> Snapshot:
        head = os.pread(descriptor, HEADER.size, 0)
        if not head.startswith(MAGIC):
            raise RankFileError(f"{self.path} is not a rank file", "not_a_rank_file")
        if len(head) < HEADER.size:
            raise RankFileError(f"{self.path} is cut short", "damaged")
        _, version, rank, world_size, pid, start_ns, capacity, bounds, crc = HEADER.unpack(head)
        if version == VERSION and (zlib.crc32(head[:-4]) != crc or capacity == 0):
            raise RankFileError(f"{self.path} has a damaged header", "damaged")
        if (version, bounds) != (VERSION, len(BUCKET_BOUNDS_NS)):
            raise RankFileError(
                f"{self.path} has format version {version} with {bounds} buckets and this program reads version"
                f" {VERSION} with {len(BUCKET_BOUNDS_NS)}: run the exporter from the same image as the server",
                "version",
            )

        for _ in range(_ATTEMPTS):
            totals = _newest_totals(descriptor)
            info = _newest_info(descriptor)
            now = self._clock()
            if totals is None or info is None:
                continue
            try:
                window = _window(descriptor, capacity, totals, now, int(window_s * _NS))
            except _LappedError:
                continue
            break
        else:
            raise RankFileError(f"{self.path} is cut short or damaged", "damaged")

        (heartbeat,) = struct.unpack("<Q", os.pread(descriptor, 8, HEARTBEAT_AT))
        # A beat in the future comes from before a reboot: CLOCK_MONOTONIC starts anew with the machine. (The second
        # allowed is for a beat that was stored between the two readings.)
        alive = heartbeat != 0 and heartbeat - _NS <= now < heartbeat + DEAD_AFTER_S * _NS
        last_step_end_ns = totals[AT["last_step_end_ns"]]
        return Snapshot(
            rank=rank,
            world_size=world_size,
            pid=pid,
            start_time_s=start_ns / _NS,
            alive=alive,
            info=info,
            histograms={name: _histogram(totals, name) for name in HISTOGRAMS},
            cast_bytes=totals[AT["cast_bytes"]],
            decode_tokens=totals[AT["decode_tokens"]],
            graph_steps=totals[AT["graph_steps"]],
            eager_steps=totals[AT["eager_steps"]],
            running_requests=totals[AT["running_requests"]],
            last_step_end_s=last_step_end_ns / _NS if last_step_end_ns else None,
            window=window,
        )


def _newest_totals(descriptor: int) -> tuple[int, ...] | None:
    size = 8 * len(TOTALS)
    both = os.pread(descriptor, 2 * size, TOTALS_AT)
    whole = []
    for slot in (both[:size], both[size:]):
        if len(slot) == size:
            words = struct.unpack(f"<{len(TOTALS)}Q", slot)
            if words[AT["sequence"]] and words[AT["crc32"]] == zlib.crc32(slot[:-8]):
                whole.append(words)
    return max(whole, default=None)


def _newest_info(descriptor: int) -> BackendInfo | None:
    newest = (0, b"")
    for i in range(2):
        slot = os.pread(descriptor, INFO_SLOT, INFO_AT + i * INFO_SLOT)
        if len(slot) < INFO_HEAD.size:
            continue
        sequence, length, crc = INFO_HEAD.unpack_from(slot)
        body = slot[INFO_HEAD.size : INFO_HEAD.size + length]
        if sequence > newest[0] and zlib.crc32(body, sequence) == crc:
            newest = (sequence, body)
    if not newest[0]:
        return None
    return _backend_info(newest[1])


@lru_cache(maxsize=64)
def _backend_info(body: bytes) -> BackendInfo | None:
    """Return what `body` says as JSON, None when that is not what a rank writes, whatever its checksum says."""
    try:
        values = json.loads(body)
        info = BackendInfo(**{field.name: values[field.name] for field in fields(BackendInfo)})
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    whole = all(type(value) is (bool if name == "verified" else str) for name, value in vars(info).items())
    return info if whole else None


def _histogram(totals: tuple[int, ...], name: str) -> Histogram:
    at = HISTOGRAM_AT[name]
    return Histogram(sum_s=totals[at] / _NS, buckets=totals[at + 1 : at + 2 + len(BUCKET_BOUNDS_NS)])


class _Ring:
    """Reader's side of a ring whose newest record has number ``newest`` (0: it is empty)."""

    def __init__(self, descriptor: int, at: int, names: tuple[str, ...], capacity: int, newest: int) -> None:
        self._descriptor, self._at, self._names, self._capacity = descriptor, at, names, capacity
        self._struct = struct.Struct(f"<{len(names)}Q")
        self._start_of_life = dict.fromkeys(names, 0)
        self.newest = newest
        # A few of the oldest records are left alone: the writer may be about to replace them.
        self.oldest = max(0, newest - capacity + 1 + capacity // 16)

    def recorded_ns(self, index: int) -> int:
        """Return when record ``index`` was made; its checksum is left to `get`."""
        if index == 0:
            return 0
        at = self._at + (index - 1) % self._capacity * self._struct.size
        data = os.pread(self._descriptor, _RECORD_HEAD.size, at)
        if len(data) < _RECORD_HEAD.size:
            raise _LappedError
        found, recorded_ns = _RECORD_HEAD.unpack(data)
        if found != index:
            raise _LappedError
        return int(recorded_ns)

    def get(self, index: int) -> dict[str, int]:
        """Return record ``index``; 0 stands for the start of the life, where all sums are zero."""
        if index == 0:
            return self._start_of_life
        data = os.pread(
            self._descriptor, self._struct.size, self._at + (index - 1) % self._capacity * self._struct.size
        )
        if len(data) < self._struct.size:
            raise _LappedError
        record = dict(zip(self._names, self._struct.unpack(data), strict=True))
        if record["index"] != index or record["crc32"] != zlib.crc32(data[:-8]):
            raise _LappedError
        return record

    def last_until(self, time_ns: int) -> dict[str, int]:
        """Return the newest record that was made at ``time_ns`` or before, else the oldest one there is."""
        later = range(self.oldest + 1, self.newest + 1)
        return self.get(self.oldest + bisect_right(later, time_ns, key=self.recorded_ns))


def _window(descriptor: int, capacity: int, totals: tuple[int, ...], now_ns: int, window_ns: int) -> Window:
    step_count = totals[AT["graph_steps"]] + totals[AT["eager_steps"]]
    steps = _Ring(descriptor, STEP_RING_AT, STEP_RING, capacity, step_count)
    tokens_at = STEP_RING_AT + capacity * 8 * len(STEP_RING)
    tokens = _Ring(descriptor, tokens_at, TOKEN_RING, capacity, totals[AT["token_records"]])

    # A ring that does not reach back to the window's start shortens the window.
    reach = max(steps.recorded_ns(steps.oldest), tokens.recorded_ns(tokens.oldest))
    since_ns = max(now_ns - window_ns, reach)
    start, end = steps.last_until(since_ns), steps.get(steps.newest)
    count = end["index"] - start["index"]
    intervals = end["interval_count"] - start["interval_count"]

    def mean(name: str, per: int) -> float | None:
        return (end[name] - start[name]) / per if per else None

    def mean_s(name: str, per: int) -> float | None:
        return (end[name] - start[name]) / per / _NS if per else None

    return Window(
        seconds=(now_ns - since_ns) / _NS,
        steps=count,
        tokens=totals[AT["decode_tokens"]] - tokens.last_until(since_ns)["decode_tokens"],
        step_s=mean_s("step_ns", count),
        interval_s=mean_s("interval_ns", intervals),
        cast_s=mean_s("cast_ns", count),
        attention_s=mean_s("attention_ns", count),
        batch=mean("batch", count),
        kv_tokens=mean("kv_tokens", count),
    )
