"""A model that comes from a hub: downloaded once into a claim by the pod, then served from there.

The hub is a pod that speaks the hub's API and holds the tiny model; no public hub is asked.
"""

import json
import time
from pathlib import Path

import pytest

from demo.deployment import condition, explain

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

HUB = Path(__file__).resolve().parents[1] / "unit" / "backend" / "hub.py"
REPO = "tests/tiny"
NAME = "from-hub"
CACHE = "hub-cache"
PORT = 8000


def hub_objects(image):
    """The hub's script, pod and Service, and the claim that the download fills."""
    labels = {"app": "hub"}
    container = {
        "name": "hub",
        "image": image,
        "command": ["python", "/script/hub.py", REPO, "/models", str(PORT)],
        "volumeMounts": [{"name": "script", "mountPath": "/script"}, {"name": "model", "mountPath": "/models"}],
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    pod = {
        "containers": [container],
        "volumes": [
            {"name": "script", "configMap": {"name": "hub"}},
            {"name": "model", "persistentVolumeClaim": {"claimName": "tiny-model", "readOnly": True}},
        ],
        "terminationGracePeriodSeconds": 0,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
    }
    claim = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "hub"}, "data": {"hub.py": HUB.read_text()}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "hub", "labels": labels}, "spec": pod},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "hub"},
            "spec": {"selector": labels, "ports": [{"port": PORT}]},
        },
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": CACHE}, "spec": claim},
    ]


@pytest.fixture(scope="module")
def hub(line):
    objects = hub_objects(line.images["server-cpu"])
    for value in objects:
        line.apply(value)
    line.kubectl.run("wait", "pod/hub", "-n", line.namespace, "--for=condition=Ready", "--timeout=120s", timeout=130)
    yield lambda: line.kubectl.run("logs", "pod/hub", "-n", line.namespace)
    line.delete(NAME)
    for value in objects:
        line.kubectl.run("delete", value["kind"], value["metadata"]["name"], "-n", line.namespace, "--wait=false")


def deployment(revision="main", **spec):
    source = {"repo": REPO, "revision": revision, "endpoint": f"http://hub:{PORT}", "cacheClaimName": CACHE}
    return {
        "apiVersion": "glm5.dev/v1alpha1",
        "kind": "GLM5Deployment",
        "metadata": {"name": NAME},
        "spec": {
            "model": {"source": {"huggingFace": source}},
            "gpus": {"count": 8, "tensorParallelSize": 1},
            "kvCache": {"maxTokens": 20000},
            "server": {"toolCallParser": "", "reasoningParser": ""},
            "sharedMemory": "1Gi",
            "drain": {"gracePeriod": "5s"},
            **spec,
        },
    }


def wait_for(line, kind, status, reason=None, seconds=300):
    deadline = time.monotonic() + seconds
    while True:
        value = line.get(NAME)
        found = condition(value, kind)
        if found.get("status") == status and reason in (None, found.get("reason")):
            return found["message"]
        assert time.monotonic() < deadline, f"{kind} is not {status}: {explain(value)}"
        time.sleep(1)


def test_a_model_is_downloaded_once_and_served_and_a_bad_repository_is_named(line, hub):
    wrong = deployment()
    wrong["spec"]["model"]["source"]["huggingFace"]["repo"] = "tests/absent"
    line.apply(wrong)
    message = wait_for(line, "Available", "False", "DownloadFailed")
    assert "tests/absent@main: the hub has no such repository" in message

    line.apply(deployment())
    wait_for(line, "Available", "True")
    fetched = hub().count("body of")
    assert fetched >= 3
    pods = line.kubectl.get("pods", "-n", line.namespace, "-l", f"glm5.dev/deployment={NAME}")["items"]
    first = pods[0]["metadata"]["uid"]

    line.kubectl.run("delete", "pod", pods[0]["metadata"]["name"], "-n", line.namespace, timeout=120)

    def replaced():
        found = line.kubectl.get("pods", "-n", line.namespace, "-l", f"glm5.dev/deployment={NAME}")["items"]
        return found and all(pod["metadata"]["uid"] != first for pod in found)

    deadline = time.monotonic() + 60
    while not replaced():
        assert time.monotonic() < deadline, json.dumps(line.get(NAME).get("status"))
        time.sleep(1)
    wait_for(line, "Available", "True")
    assert hub().count("body of") == fetched
