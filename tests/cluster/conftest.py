"""What the cluster tests stand on: the embedded cluster with images, Prometheus and operator, brought up once.

KEEP_CLUSTER=1 leaves it up at the end, for the next run to use again. TEST_STATE and TEST_API_PORT choose another place
for it than /var/lib/glm5-test and 6446, so that two runs can go on side by side.
"""

import contextlib
import json
import os
import re
import select
import subprocess
import time
from dataclasses import dataclass, replace
from typing import Any

import pytest

from cluster import lifecycle
from cluster.kubectl import Kubectl
from cluster.layout import layout
from demo import install
from demo.deployment import RESOURCE, condition, explain
from demo.measure import Measured, measure
from demo.prometheus import Prometheus
from demo.target import IMAGES, Embedded

NAMESPACE = "glm5-test"


@dataclass(frozen=True)
class Line:
    """The whole line as tests use it: a cluster with Prometheus, the operator and the tiny model in it."""

    target: Embedded
    images: dict[str, str]
    namespace: str

    @property
    def kubectl(self) -> Kubectl:
        return self.target.kubectl

    @property
    def prometheus(self) -> Prometheus:
        return Prometheus(self.kubectl)

    def in_namespace(self, namespace: str) -> "Line":
        """The same line, for objects of another namespace."""
        return replace(self, namespace=namespace)

    def measure(self, deployment: str, *, requests: int, tokens: int) -> Measured:
        """Send a load from a pod and count it on both sides."""
        return measure(
            self.kubectl,
            self.prometheus,
            namespace=self.namespace,
            deployment=deployment,
            image=self.images["server-cpu"],
            requests=requests,
            tokens=tokens,
        )

    def apply(self, value: dict[str, Any]) -> None:
        """Apply an object of the test's namespace."""
        self.kubectl.run("apply", "-n", self.namespace, "-f", "-", text=json.dumps(value))

    def get(self, name: str) -> dict[str, Any]:
        """Return a GLM5Deployment."""
        return self.kubectl.get(RESOURCE, name, "-n", self.namespace)

    def delete(self, name: str) -> None:
        """Delete a GLM5Deployment and wait until its pods are gone, which frees its GPUs."""
        self.kubectl.run("delete", RESOURCE, name, "-n", self.namespace, "--ignore-not-found")
        chosen = ("pods", "-n", self.namespace, "-l", f"glm5.dev/deployment={name}")
        deadline = time.monotonic() + 120
        while self.kubectl.get(*chosen)["items"]:
            assert time.monotonic() < deadline, f"pods of {name} are still there 120 s after its deletion"
            time.sleep(1)

    def wait_for_reason(self, name: str, reason: str, *, kind: str = "Available", seconds: float = 240) -> str:
        """Wait until a condition of the object as it is now has this reason, and return its message."""
        deadline = time.monotonic() + seconds
        while True:
            value = self.get(name)
            found = condition(value, kind)
            if found.get("reason") == reason and found["observedGeneration"] == value["metadata"]["generation"]:
                return found["message"]
            assert time.monotonic() < deadline, f"{kind} of {name} has not the reason {reason}: {explain(value)}"
            time.sleep(1)

    @contextlib.contextmanager
    def forwarded(self, service: str, port: int):
        """Lead a free port of 127.0.0.1 to a Service; the block gets the URL."""
        command = [self.kubectl.program, "port-forward", "-n", self.namespace, f"service/{service}", f":{port}"]
        process = subprocess.Popen(
            command, env=self.kubectl.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            assert select.select([process.stdout], [], [], 20)[0], "kubectl port-forward says nothing"
            said = process.stdout.readline()
            found = re.search(r"127\.0\.0\.1:(\d+)", said)
            assert found, f"kubectl port-forward: {said}"
            yield f"http://127.0.0.1:{found.group(1)}"
        finally:
            process.kill()
            process.wait()


def free_volumes(kubectl: Kubectl) -> None:
    """Let volumes whose claim is gone be claimed again: Kubernetes keeps them for a person to look at."""
    for volume in kubectl.get("pv")["items"]:
        if volume["status"]["phase"] == "Released":
            drop = json.dumps([{"op": "remove", "path": "/spec/claimRef"}])
            kubectl.run("patch", "pv", volume["metadata"]["name"], "--type=json", "-p", drop)


@pytest.fixture(scope="session")
def line():
    """The whole line, brought up in a cluster of its own, beside whatever a demo runs in."""
    place = {"STATE": os.environ.get("TEST_STATE", "/var/lib/glm5-test")}
    place["API_PORT"] = os.environ.get("TEST_API_PORT", "6446")
    cluster = layout("full", {**os.environ, **place})
    target = Embedded.up(cluster, memory=5 << 30, disk=8 << 30)
    kubectl = target.kubectl
    # A run that was killed may have left its objects, and with them its GPUs taken.
    kubectl.run("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=true", timeout=180)
    free_volumes(kubectl)
    images = target.provide(IMAGES)
    install.prometheus(kubectl, images["prometheus"])
    install.operator(target, images)
    install.namespace(kubectl, NAMESPACE)
    install.model(kubectl, NAMESPACE, images["server-cpu"])
    yield Line(target, images, NAMESPACE)
    if os.environ.get("KEEP_CLUSTER") != "1":
        lifecycle.down(target.layout)
