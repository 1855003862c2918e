"""What would fail later is said at once, in a sentence with its remedy."""

import socket
from dataclasses import replace

import pytest

from cluster import lifecycle, preflight
from cluster.layout import layout
from cluster.progress import Failure


@pytest.fixture
def cluster(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return replace(layout("full", {}), state=tmp_path / "state", cache=tmp_path / "cache", api_port=port)


@pytest.mark.parametrize("action", [lifecycle.up, lifecycle.down, lifecycle.status])
def test_without_root_nothing_is_touched_and_it_says_so(cluster, monkeypatch, action):
    monkeypatch.setattr(preflight.os, "geteuid", lambda: 1000)
    with pytest.raises(Failure, match=r"needs root.*sudo"):
        action(cluster)
    assert not cluster.cache.exists()


def test_a_taken_port_is_named_with_two_remedies(cluster):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", cluster.api_port))
        taken.listen()
        with pytest.raises(Failure, match=rf"Port {cluster.api_port} .* taken .* Stop it, or choose .* API_PORT="):
            preflight.check(cluster, to_build=False)


def test_too_little_memory_and_disk_are_both_said_at_once(cluster):
    with pytest.raises(Failure) as failure:
        preflight.check(cluster, to_build=False, memory=1 << 50, disk=1 << 60)
    assert "of memory are available" in str(failure.value)
    assert "CACHE= and STATE=" in str(failure.value)


def test_go_is_asked_for_only_when_something_is_to_be_built(cluster, monkeypatch):
    monkeypatch.setattr(preflight.packages, "go_version", lambda: None)
    preflight.check(cluster, to_build=False)
    with pytest.raises(Failure, match=r"Go is not on the PATH.*Install Go 1\."):
        preflight.check(cluster, to_build=True)


def test_a_go_that_is_too_old_is_named(cluster, monkeypatch):
    monkeypatch.setattr(preflight.packages, "go_version", lambda: (1, 19))
    with pytest.raises(Failure, match=r"Go 1\.19 is too old"):
        preflight.check(cluster, to_build=True)
