"""Where the embedded cluster keeps its things, and what it refuses."""

from pathlib import Path

import pytest

from cluster.layout import layout, module_version, version


def test_the_two_profiles_share_neither_state_nor_port():
    full, control_plane = layout("full", {}), layout("control-plane", {})
    assert full.state != control_plane.state
    assert full.api_port != control_plane.api_port
    assert full.cgroup != control_plane.cgroup


def test_the_environment_moves_a_cluster():
    moved = layout("full", {"STATE": "/srv/other", "API_PORT": "7443", "CACHE": "/srv/cache"})
    assert (moved.state, moved.api_port, moved.cache) == (Path("/srv/other"), 7443, Path("/srv/cache"))
    assert moved.server == "https://127.0.0.1:7443"


@pytest.mark.parametrize("port", ["http", "80", "70000", "-1"])
def test_what_is_not_an_unprivileged_port_is_refused(port):
    with pytest.raises(ValueError, match=f"API_PORT={port}"):
        layout("full", {"API_PORT": port})


@pytest.mark.parametrize("state", ["/", "/var", "relative/path"])
def test_a_state_folder_that_removal_would_make_dangerous_is_refused(state):
    with pytest.raises(ValueError, match="STATE="):
        layout("full", {"STATE": state})


def test_versions_are_read_from_where_they_are_pinned():
    assert module_version("k8s.io/kubernetes").startswith("v1.")
    assert version("HELM_VERSION").startswith("v3.")
    with pytest.raises(KeyError, match="NO_SUCH_VERSION"):
        version("NO_SUCH_VERSION")
