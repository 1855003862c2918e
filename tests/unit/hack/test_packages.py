"""Which Debian packages are installed before a cluster starts."""

import pytest

from cluster import lifecycle, packages, sandbox
from cluster.layout import layout


@pytest.mark.parametrize("wanted", [packages.CONTROL_PLANE, packages.WITH_NODE])
def test_a_cluster_has_what_its_doors_certificates_and_network_are_made_with(wanted):
    assert {sandbox.SOCAT[0], "openssl", "ip"} <= set(wanted)


@pytest.mark.parametrize(
    ("profile", "wanted"), [("control-plane", packages.CONTROL_PLANE), ("full", packages.WITH_NODE)]
)
def test_packages_are_installed_before_anything_is_built_or_started(monkeypatch, tmp_path, profile, wanted):
    class Enough(Exception):
        pass

    def stop(asked, log):
        raise Enough(asked)

    monkeypatch.setattr(lifecycle.preflight, "want_root", lambda: None)
    monkeypatch.setattr(lifecycle.preflight, "check", lambda *_, **__: None)
    monkeypatch.setattr(lifecycle, "is_healthy", lambda *_: False)
    monkeypatch.setattr(lifecycle.packages, "ensure", stop)
    monkeypatch.setenv("CACHE", str(tmp_path))
    with pytest.raises(Enough) as stopped:
        lifecycle.up(layout(profile))
    assert stopped.value.args == (wanted,)
