"""Prometheus' own tool."""

import shutil

import pytest

from cluster import build
from cluster.layout import layout


@pytest.fixture(scope="session")
def promtool() -> str:
    """The one that `make promtool` has built, else one on the PATH."""
    built = build.folder(layout("control-plane")) / "promtool"
    found = str(built) if built.exists() else shutil.which("promtool")
    if found is None:
        pytest.skip("no promtool: make promtool")
    return found
