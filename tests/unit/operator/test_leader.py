"""What a process says while it waits for the Lease. The API server's part is a Lease that the tests change."""

import asyncio
import datetime
from types import SimpleNamespace

import pytest

from glm5_operator.cluster import ApiError
from glm5_operator.leader import Leader
from glm5_operator.settings import Settings

MIDNIGHT = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
ACTS = "this process acts: it holds Lease models/glm5-operator, after {} s"


def held_by(holder, version, seconds=30):
    spec = {"holderIdentity": holder, "leaseDurationSeconds": seconds}
    return {"metadata": {"resourceVersion": str(version)}, "spec": spec}


@pytest.fixture
def log_of(monkeypatch, caplog):
    """The log of a process that gets the Lease in the end; `answers` are the Leases by the second they appear in."""

    def run(answers):
        now = 0.0

        async def sleep(seconds):
            nonlocal now
            now += seconds
            assert now < 1000, "it never gets the Lease"

        async def get(*_):
            found = answers[max(second for second in answers if second <= now)]
            if isinstance(found, ApiError):
                raise found
            return found

        async def replace_lease(_, __, ___, spec):
            return {"metadata": {"resourceVersion": "1000"}, "spec": spec}

        monkeypatch.setattr("glm5_operator.leader.asyncio", SimpleNamespace(sleep=sleep))
        monkeypatch.setattr("glm5_operator.leader.time", SimpleNamespace(monotonic=lambda: now))
        leader = Leader(
            SimpleNamespace(get=get, replace_lease=replace_lease),
            Settings(namespace="models", identity="new"),
            lambda: MIDNIGHT + datetime.timedelta(seconds=now),
        )
        with caplog.at_level("INFO", "glm5_operator.leader"):
            asyncio.run(leader.acquire())
        assert leader.holds()
        return [record.getMessage() for record in caplog.records]

    return run


def test_a_process_that_waits_says_once_who_holds_the_lease_and_when_it_takes_over_at_the_latest(log_of):
    waits, acts = log_of({0: held_by("old", 1)})
    assert "models/glm5-operator is held by old." in waits
    assert waits.endswith("in 32 s, at 2026-01-01T00:00:32Z at the latest")
    assert acts == ACTS.format(32)


def test_the_time_told_is_that_of_the_lease_which_the_other_process_wrote(log_of):
    waits, acts = log_of({0: held_by("old", 1, seconds=8)})
    assert waits.endswith("in 10 s, at 2026-01-01T00:00:10Z at the latest")
    assert acts == ACTS.format(10)


def test_a_holder_that_renews_is_not_told_again(log_of):
    renewed = {second: held_by("old", second) for second in range(0, 100, 8)}
    log = log_of({**renewed, 100: held_by("", 100)})
    assert len(log) == 2
    assert log[1] == ACTS.format(100)


def test_another_holder_is_told_with_its_own_time(log_of):
    first, second, acts = log_of({0: held_by("old", 1), 20: held_by("standby", 2)})
    assert "is held by old." in first
    assert "is held by standby." in second
    assert second.endswith("in 32 s, at 2026-01-01T00:00:52Z at the latest")
    assert acts == ACTS.format(52)


def test_a_free_lease_is_taken_without_word_of_a_wait(log_of):
    assert log_of({0: held_by("", 1)}) == [ACTS.format(0)]


def test_no_lease_at_all_is_taken_without_word_of_a_wait(log_of):
    assert log_of({0: None}) == [ACTS.format(0)]


def test_its_own_lease_of_before_a_restart_is_taken_without_word_of_a_wait(log_of):
    assert log_of({0: held_by("new", 1)}) == [ACTS.format(0)]


def test_an_api_server_that_fails_meanwhile_hides_no_holder_and_repeats_none(log_of):
    fails = ApiError(0, "Unreachable", "the API server does not answer", "GET")
    error, waits, again, acts = log_of({0: fails, 2: held_by("old", 1), 10: fails, 12: held_by("old", 1)})
    assert "does not answer" in error
    assert "is held by old." in waits
    assert "does not answer" in again
    assert acts == ACTS.format(34)
