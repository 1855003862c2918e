"""`make demo CLUSTER=current` in a cluster that is not the demo's own, with images through a registry.

The cluster is a second embedded one, handed over as if it were foreign: by kubeconfig only.
"""

import os
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from cluster import build, lifecycle, sandbox
from cluster.kubectl import Kubectl
from cluster.layout import REPOSITORY, layout
from cluster.progress import wait_until
from demo.names import MODES

# On a bare machine the first test here builds what a node needs: 20 minutes were seen on two busy cores.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(2700)]

REGISTRY_PORT = 5055
REGISTRY = f"127.0.0.1:{REGISTRY_PORT}/glm5"
REGISTRY_CONFIGURATION = """version: 0.1
storage: {{filesystem: {{rootdirectory: {folder}}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""


@pytest.fixture(scope="module")
def foreign():
    """A cluster with a registry that its node can pull from and this machine can push to, both at 127.0.0.1."""
    cluster = layout("full", {"STATE": "/var/lib/glm5-foreign", "API_PORT": "6445", "KEEP_IMAGES": "0"})
    lifecycle.down(cluster)
    binaries = lifecycle.up(cluster)
    build.build(cluster, ["registry"])
    folder = cluster.state / "registry"
    folder.mkdir()
    configuration = folder / "config.yml"
    configuration.write_text(REGISTRY_CONFIGURATION.format(folder=folder, port=REGISTRY_PORT))
    sandbox.start(cluster, "registry", [f"{binaries}/registry", "serve", configuration])
    sandbox.open_door(cluster, REGISTRY_PORT)
    wait_until("the registry to answer", registry_answers, timeout=30, hint=f"See {cluster.logs}/registry.log.")
    yield Kubectl(f"{binaries}/kubectl", cluster.kubeconfig)
    lifecycle.down(cluster)


def registry_answers():
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{REGISTRY_PORT}/v2/", timeout=2)
    except (urllib.error.URLError, ConnectionError):
        return False
    return True


def demo(command, kubectl=None, **settings):
    """Run the demo's command as `make` does."""
    environment = {**os.environ, **(kubectl.environment if kubectl else {}), **settings}
    environment["PYTHONPATH"] = str(REPOSITORY / "hack")
    return subprocess.run(
        [sys.executable, "-m", "demo", command], env=environment, capture_output=True, text=True, timeout=1200
    )


def inventory(kubectl):
    """What the reader's cluster consists of, leaving out what changes by itself."""
    [node] = kubectl.get("nodes")["items"]
    taints = node["spec"].get("taints", [])
    return {
        "labels": node["metadata"]["labels"],
        "unschedulable": node["spec"].get("unschedulable", False),
        # The controller manager sets and takes these with the node's conditions.
        "taints": [taint for taint in taints if not taint["key"].startswith("node.kubernetes.io/")],
        "capacity": node["status"]["capacity"],
        "namespaces": sorted(item["metadata"]["name"] for item in kubectl.get("namespaces")["items"]),
        "definitions": [item["metadata"]["name"] for item in kubectl.get("crds")["items"]],
        "roles": sorted(item["metadata"]["name"] for item in kubectl.get("clusterroles,clusterrolebindings")["items"]),
    }


def test_the_demo_runs_in_a_foreign_cluster_and_leaves_it_as_it_was(foreign):
    before = inventory(foreign)
    done = demo("up", foreign, CLUSTER="current", REGISTRY=REGISTRY)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    rows = {words[0]: words for line in done.stdout.splitlines() if (words := line.split()) and words[0] in MODES}
    assert set(rows) == set(MODES)
    assert rows["Never"][4] == "0%"
    pods = foreign.get("pods", "-A", "-l", "app.kubernetes.io/name in (glm5, glm5-operator, prometheus)")["items"]
    images = [container["image"] for pod in pods for container in pod["spec"]["containers"]]
    assert len(images) == 3
    assert all(image.startswith(REGISTRY) for image in images)
    done = demo("down", foreign, CLUSTER="current", REGISTRY=REGISTRY)
    assert done.returncode == 0, done.stderr
    assert inventory(foreign) == before


def test_a_namespace_of_the_readers_own_is_left_alone(foreign):
    foreign.run("create", "namespace", "monitoring")
    before = foreign.get("namespace", "monitoring")
    try:
        for command in ("up", "down"):
            done = demo(command, foreign, CLUSTER="current", REGISTRY=REGISTRY)
            assert done.returncode == 1
            assert "has a namespace monitoring that is not the demo's" in done.stderr
        assert foreign.get("namespace", "monitoring") == before
    finally:
        foreign.run("delete", "namespace", "monitoring", "--wait=true")


def test_a_foreign_cluster_needs_a_registry_and_is_told_so():
    done = demo("up", CLUSTER="current", REGISTRY="")
    assert done.returncode == 1
    assert "CLUSTER=current needs REGISTRY=" in done.stderr


def test_a_context_that_does_not_answer_is_told_so(tmp_path):
    done = demo("up", CLUSTER="current", REGISTRY=REGISTRY, KUBECONFIG=str(tmp_path / "none"))
    assert done.returncode == 1
    assert "current context does not answer" in done.stderr


def test_another_word_for_the_cluster_is_refused_with_the_two_that_exist():
    done = demo("up", CLUSTER="minikube")
    assert done.returncode == 1
    assert "CLUSTER=minikube is neither embedded nor current" in done.stderr
