"""A real API server without a node, which runs beside the full cluster, and an operator on the host."""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "hack"))
sys.path.insert(0, str(Path(__file__).parent))

from cluster import build, lifecycle  # noqa: E402
from cluster.kubectl import Kubectl  # noqa: E402
from cluster.layout import layout  # noqa: E402
from glm5_operator.api.render import crd_yaml  # noqa: E402


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in Path(item.fspath).parents:
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def kubectl() -> Kubectl:
    """kubectl on a control plane of its own, with the CRD installed."""
    control_plane = layout("control-plane")
    lifecycle.up(control_plane)
    made = Kubectl(str(build.folder(control_plane) / "kubectl"), control_plane.kubeconfig)
    made.run("apply", "--server-side", "--force-conflicts", "-f", "-", text=crd_yaml())
    made.run("wait", "--for=condition=Established", "crd/glm5deployments.glm5.dev", "--timeout=30s")
    return made


@pytest.fixture
def namespace(kubectl: Kubectl) -> Iterator[str]:
    """A namespace for one test."""
    name = f"op-{uuid.uuid4().hex[:8]}"
    kubectl.run("create", "namespace", name)
    yield name
    kubectl.run("delete", "namespace", name, "--wait=false")


class OperatorProcess:
    """`glm5-operator run` as a process on the host."""

    def __init__(self, kubectl: Kubectl, namespace: str, log: Path, port: int, **settings: str) -> None:
        self.port = port
        self.log = log
        variables = {
            "KUBECONFIG": str(kubectl.kubeconfig),
            "GLM5_OPERATOR_NAMESPACE": namespace,
            "GLM5_OPERATOR_IDENTITY": f"test-{port}",
            "GLM5_OPERATOR_METRICS_PORT": str(port),
            "GLM5_OPERATOR_HEALTH_PORT": str(port + 1),
            **settings,
        }
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "glm5_operator", "run"],
                env=os.environ | variables,
                stderr=output,
            )

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the series with this name and these labels."""
        text = httpx.get(f"http://127.0.0.1:{self.port}/metrics").text
        total = 0.0
        for line in text.splitlines():
            series, _, value = line.rpartition(" ")
            base, _, rest = series.partition("{")
            if base == name and all(f'{key}="{wanted}"' in rest for key, wanted in labels.items()):
                total += float(value)
        return total

    @property
    def serves(self) -> bool:
        """Whether its endpoints answer."""
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/metrics").status_code == 200
        except httpx.TransportError:
            return False

    @property
    def acts(self) -> bool:
        """Whether it holds the Lease and has started its watches."""
        return self.serves and self.metric("glm5_operator_leader") == 1

    def stop(self) -> int:
        """SIGTERM; returns the exit status."""
        self.process.terminate()
        return self.process.wait(20)

    def kill(self) -> None:
        """SIGKILL: no goodbye, the Lease stays held."""
        self.process.kill()
        self.process.wait(20)


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


def eventually(check: Callable[[], Any], what: str, seconds: float = 30) -> Any:
    """The first true value of `check`. Fails with `what` and the last value or error after some seconds."""
    end = time.monotonic() + seconds
    last: Any = None
    while time.monotonic() < end:
        try:
            last = check()
            if last:
                return last
        except Exception as error:
            last = error
        time.sleep(0.2)
    pytest.fail(f"not within {seconds} s: {what}; last: {last!r}")
