"""A real API server without a node, which runs beside the full cluster, and operators on the host that talk to it."""

import fcntl
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from harness import OperatorProcess, eventually

from cluster import build, lifecycle
from cluster.kubectl import Kubectl
from cluster.layout import layout
from glm5_operator.api.render import crd_yaml


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in Path(item.fspath).parents:
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def kubectl() -> Iterator[Kubectl]:
    """kubectl on a control plane of its own, with the CRD installed. KEEP_CLUSTER=1 leaves it up at the end."""
    control_plane = layout("control-plane")
    control_plane.cache.mkdir(parents=True, exist_ok=True)
    with (control_plane.cache / "operator-tests.lock").open("w") as lock:
        # Another checkout's tests on the same machine would take it down under these.
        fcntl.flock(lock, fcntl.LOCK_EX)
        lifecycle.up(control_plane)
        made = Kubectl(str(build.folder(control_plane) / "kubectl"), control_plane.kubeconfig)
        made.run("apply", "--server-side", "--force-conflicts", "-f", "-", text=crd_yaml())
        made.run("wait", "--for=condition=Established", "crd/glm5deployments.glm5.dev", "--timeout=30s")
        yield made
        if os.environ.get("KEEP_CLUSTER") != "1":
            lifecycle.down(control_plane)


@pytest.fixture
def namespace(kubectl: Kubectl) -> Iterator[str]:
    """A namespace for one test."""
    name = f"op-{uuid.uuid4().hex[:8]}"
    kubectl.run("create", "namespace", name)
    yield name
    kubectl.run("delete", "namespace", name, "--wait=false")


@pytest.fixture
def start_operator(kubectl: Kubectl, namespace: str, tmp_path: Path) -> Iterator[Callable[..., OperatorProcess]]:
    """Starts operators that look at the test's namespace only and keep their Lease there."""
    started: list[OperatorProcess] = []

    def start(*, wait: bool = True, **settings: str) -> OperatorProcess:
        port = 19100 + 2 * len(started)
        settings = {"GLM5_OPERATOR_WATCH_NAMESPACES": namespace, **settings}
        operator = OperatorProcess(kubectl, namespace, tmp_path / f"operator-{len(started)}.log", port, **settings)
        started.append(operator)
        if wait:
            eventually(lambda: operator.acts, "the operator acts")
        return operator

    yield start
    for operator in started:
        if operator.process.poll() is None:
            operator.kill()
