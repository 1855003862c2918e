"""Ranks that really write their files."""

import pytest
from rank_steps import INFO, Clock

from glm5_mla.timing import rankfile
from glm5_mla.timing.rankfile import BackendInfo, RankWriter


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def start_rank(tmp_path, clock, monkeypatch):
    """Start a rank whose heart beats only when the test says so."""
    monkeypatch.setattr(rankfile, "HEARTBEAT_S", 3600)
    started = []

    def start(rank: int = 0, world_size: int = 8, info: BackendInfo = INFO, **options) -> RankWriter:
        started.append(RankWriter(tmp_path, rank, world_size, info, clock=clock, **options))
        return started[-1]

    yield start
    for rank in started:
        rank.close()
