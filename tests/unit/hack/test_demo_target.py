"""What the demo wants of the reader's own cluster, and when."""

from types import SimpleNamespace

import pytest

from cluster.progress import Failure
from demo import target
from demo.target import Current, choose


@pytest.fixture
def without_gpus(monkeypatch):
    """Stand in for the kubectl of a cluster that answers and has one node without GPUs."""
    monkeypatch.setenv("CLUSTER", "current")
    monkeypatch.setattr(target.shutil, "which", lambda name: f"/usr/bin/{name}")
    kubectl = SimpleNamespace(
        try_run=lambda *arguments: SimpleNamespace(returncode=0),
        get=lambda *arguments: {"items": [{"status": {"allocatable": {"cpu": "8"}}}]},
    )
    monkeypatch.setattr(target, "Kubectl", lambda program: kubectl)
    return kubectl


@pytest.mark.parametrize("registry", [None, "", "glm5.local"])
def test_removing_the_demo_needs_neither_a_registry_nor_gpus(without_gpus, monkeypatch, registry):
    monkeypatch.delenv("REGISTRY", raising=False)
    if registry is not None:
        monkeypatch.setenv("REGISTRY", registry)
    assert Current.find().kubectl is without_gpus


def test_bringing_it_up_names_the_missing_registry(without_gpus, monkeypatch):
    monkeypatch.setenv("REGISTRY", "glm5.local")
    with pytest.raises(Failure, match="CLUSTER=current needs REGISTRY="):
        choose()


def test_bringing_it_up_names_the_missing_gpus(without_gpus, monkeypatch):
    monkeypatch.setenv("REGISTRY", "registry.example:5000/glm5")
    with pytest.raises(Failure, match=r"No node of this cluster offers 8 nvidia.com/gpu \(the most is 0\)"):
        choose()
