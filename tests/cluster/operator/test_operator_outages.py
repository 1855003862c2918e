"""An API server that is away, rights that are missing, an API that appears later: the operator goes on and says so."""

import asyncio
import json
import threading
import time

import pytest
import yaml
from harness import eventually
from objects import condition, glm5

AWAY_SECONDS = 45


class Line:
    """A TCP relay on loopback between the operator and the API server, which can be cut."""

    def __init__(self, target_port):
        self.up = True
        self._target_port = target_port
        self._writers = set()
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._relay, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def cut(self):
        self.up = False
        self._loop.call_soon_threadsafe(lambda: [writer.close() for writer in set(self._writers)])

    async def _relay(self, reader, writer):
        if not self.up:
            writer.close()
            return
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        self._writers |= {writer, far_writer}

        async def pump(source, sink):
            try:
                while data := await source.read(65536):
                    sink.write(data)
                    await sink.drain()
            except OSError:
                pass
            finally:
                sink.close()

        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))
        self._writers -= {writer, far_writer}


def write_kubeconfig(path, kubectl, *, port=None, token=None):
    """The administrator's kubeconfig with another port, or with a service account's token."""
    config = yaml.safe_load(kubectl.kubeconfig.read_text())
    cluster = config["clusters"][0]["cluster"]
    if port is not None:
        cluster["server"] = f"https://127.0.0.1:{port}"
    if token is not None:
        config["users"][0]["user"] = {"token": token}
    path.write_text(yaml.safe_dump(config))
    return str(path)


@pytest.mark.timeout(300)
def test_an_api_server_that_is_away_for_a_while_is_waited_for(kubectl, namespace, start_operator, tmp_path):
    line = Line(
        int(yaml.safe_load(kubectl.kubeconfig.read_text())["clusters"][0]["cluster"]["server"].rpartition(":")[2])
    )
    operator = start_operator(KUBECONFIG=write_kubeconfig(tmp_path / "line.kubeconfig", kubectl, port=line.port))
    kubectl.run("apply", "-f", "-", text=glm5(namespace))
    eventually(lambda: kubectl.find("deployment", "glm5", "-n", namespace), "a Deployment")
    line.cut()
    kubectl.run("apply", "-f", "-", text=glm5(namespace, "second"))
    time.sleep(AWAY_SECONDS)
    assert kubectl.find("deployment", "second", "-n", namespace) is None
    line.up = True
    eventually(lambda: kubectl.find("deployment", "second", "-n", namespace), "the second object's Deployment", 60)
    assert operator.process.poll() is None


ROLE = """
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: operator}
rules:
- {apiGroups: [glm5.dev], resources: [glm5deployments], verbs: [get, list, watch]}
- {apiGroups: [glm5.dev], resources: [glm5deployments/status], verbs: [patch]}
- {apiGroups: [apps], resources: [deployments], verbs: [get, list, watch, create, patch, delete]}
- {apiGroups: [apps], resources: [replicasets], verbs: [list, watch]}
- {apiGroups: [""], resources: [services], verbs: [get, list, watch, create, patch, delete]}
- {apiGroups: [""], resources: [pods], verbs: [list, watch]}
- {apiGroups: [""], resources: [events], verbs: [create, list]}
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, create, update]}
"""


def test_a_missing_right_is_named_and_the_rest_goes_on(kubectl, namespace, start_operator, tmp_path):
    kubectl.run("create", "serviceaccount", "operator", "-n", namespace)
    kubectl.run("apply", "-n", namespace, "-f", "-", text=ROLE)
    account = f"--serviceaccount={namespace}:operator"
    kubectl.run("create", "rolebinding", "operator", "--role=operator", account, "-n", namespace)
    token = kubectl.run("create", "token", "operator", "-n", namespace).strip()
    operator = start_operator(KUBECONFIG=write_kubeconfig(tmp_path / "token.kubeconfig", kubectl, token=token))
    kubectl.run("apply", "-f", "-", text=glm5(namespace, replicas=2))

    def complains():
        body = kubectl.get("glm5", "glm5", "-n", namespace)
        return condition(body, "Degraded") if condition(body, "Degraded").get("reason") == "Forbidden" else None

    degraded = eventually(complains, "Degraded because of Forbidden")
    assert "lacks a right over PodDisruptionBudget" in degraded["message"]
    eventually(lambda: kubectl.find("deployment", "glm5", "-n", namespace), "a Deployment all the same")
    assert operator.process.poll() is None


POD_MONITOR = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "podmonitors.monitoring.coreos.com"},
    "spec": {
        "group": "monitoring.coreos.com",
        "scope": "Namespaced",
        "names": {
            "kind": "PodMonitor",
            "plural": "podmonitors",
            "singular": "podmonitor",
            "listKind": "PodMonitorList",
        },
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


@pytest.mark.timeout(300)
def test_a_pod_monitor_is_made_once_its_api_appears(kubectl, namespace, start_operator):
    """The API is defined by name only: the real definition comes with the Prometheus operator."""
    kubectl.run("delete", "crd", "podmonitors.monitoring.coreos.com", "--ignore-not-found")
    start_operator(GLM5_OPERATOR_SWEEP_SECONDS="5")
    kubectl.run("apply", "-f", "-", text=glm5(namespace))
    eventually(lambda: kubectl.find("deployment", "glm5", "-n", namespace), "a Deployment")
    try:
        kubectl.run("apply", "-f", "-", text=json.dumps(POD_MONITOR))
        monitor = eventually(lambda: kubectl.find("podmonitor", "glm5", "-n", namespace), "a PodMonitor", 120)
        assert monitor["spec"]["podMetricsEndpoints"][0]["port"] == "metrics"
        kubectl.run("delete", "podmonitor", "glm5", "-n", namespace)
        eventually(lambda: kubectl.find("podmonitor", "glm5", "-n", namespace), "the PodMonitor again", 60)
    finally:
        kubectl.run("delete", "crd", "podmonitors.monitoring.coreos.com", "--ignore-not-found")
