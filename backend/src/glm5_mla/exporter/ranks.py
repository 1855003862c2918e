"""All ranks of a pod, read from the run directory."""

from __future__ import annotations

import logging
import os
import re
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from glm5_mla.timing.rankfile import RankFileError, rank_path
from glm5_mla.timing.rankreader import RankReader, Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

WINDOW_S = 10.0
MAX_RANKS = 1024
"""Files with a higher number are no ranks of ours: one server has at most a few dozen."""
ERROR_REASONS = ("damaged", "not_a_rank_file", "unreadable", "version", "wrong_rank")


class Rank(NamedTuple):
    """A rank that should be there or is there; ``living`` is None if it is dead, not there yet, or unreadable."""

    number: int
    living: Snapshot | None


class RunDirectory:
    """The run directory of one pod.

    What a dead rank left behind is never handed out: of a rank that is not alive only its absence is known.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        expected_ranks: int | None = None,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.path = Path(path)
        self._expected = expected_ranks
        self._clock = clock
        self.errors = Counter(dict.fromkeys(ERROR_REASONS, 0))
        """Failed reads by RankFileError.reason, since the start."""
        self._complaints: dict[int, str] = {}

    def read(self) -> list[Rank]:
        """Return all expected ranks and every further one that is alive, by number. Never raises."""
        living: dict[int, Snapshot] = {}
        for number in self._numbers():
            snapshot = self._read_one(number)
            if snapshot is not None and snapshot.alive:
                living[number] = snapshot
        expected = self.expected_ranks(living.get(0))
        return [Rank(number, living.get(number)) for number in sorted({*range(expected), *living})]

    def expected_ranks(self, rank0: Snapshot | None) -> int:
        """Return how many ranks should be there: what the exporter was told, else what rank 0 says, else none."""
        if self._expected is not None:
            return self._expected
        return min(rank0.world_size, MAX_RANKS) if rank0 else 0

    def _numbers(self) -> list[int]:
        try:
            names = os.listdir(self.path)
        except OSError:  # not there yet: the server's container may make it
            return []
        matches = (re.fullmatch(r"rank-(\d{1,4})", name) for name in names)
        return sorted(number for match in matches if match and (number := int(match[1])) < MAX_RANKS)

    def _read_one(self, number: int) -> Snapshot | None:
        path = rank_path(self.path, number)
        try:
            snapshot = RankReader(path, clock=self._clock).read(WINDOW_S)
            if snapshot.rank != number:
                raise RankFileError(f"{path} was written by rank {snapshot.rank}", reason="wrong_rank")
        except FileNotFoundError:
            return None
        except RankFileError as error:
            self.errors[error.reason] += 1
            if self._complaints.get(number) != str(error):  # once, not at each scrape
                self._complaints[number] = str(error)
                log.warning("%s", error)
            return None
        self._complaints.pop(number, None)
        return snapshot
