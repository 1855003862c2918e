"""A GLM5Deployment as the demo and the tests handle it: apply, change, wait."""

import time
from typing import Any

from cluster.kubectl import Kubectl
from cluster.progress import HEARTBEAT_SECONDS, Failure, say

RESOURCE = "glm5deployments.glm5.dev"


def condition(value: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return an object's condition of this type, an empty one when it has none."""
    conditions: list[dict[str, Any]] = value.get("status", {}).get("conditions", [])
    return next((entry for entry in conditions if entry["type"] == kind), {})


def is_ready(value: dict[str, Any]) -> bool:
    """Whether the operator has seen the newest spec and all pods are of it, ready, with our backend in use."""
    status = value.get("status", {})
    return (
        status.get("observedGeneration") == value["metadata"]["generation"]
        and status.get("updatedReplicas") == status.get("readyReplicas") == value["spec"].get("replicas", 1)
        and condition(value, "Available").get("status") == "True"
        and condition(value, "BackendVerified").get("status") == "True"
        and status.get("backend", {}).get("kvCast") == value["spec"].get("attention", {}).get("kvCast", "Never")
    )


def explain(value: dict[str, Any]) -> str:
    """Say in a line what an object's status says: its state, and each condition that does not hold."""
    status = value.get("status", {})
    troubles = [
        f"{entry['type']} is {entry['status']} ({entry['reason']}): {entry['message']}"
        for entry in status.get("conditions", [])
        if entry["status"] != "True" and entry["type"] != "Degraded"
    ]
    return " | ".join([status.get("state") or "no status yet", *troubles])


def wait_ready(kubectl: Kubectl, namespace: str, name: str, *, timeout: float) -> dict[str, Any]:
    """Wait until a GLM5Deployment is Ready as specified, and return it. Raises Failure with what its status says."""
    begin = said = time.monotonic()
    while True:
        value = kubectl.get(RESOURCE, name, "-n", namespace)
        if is_ready(value):
            return value
        now = time.monotonic()
        if now - begin > timeout:
            raise Failure(f"{namespace}/{name} is not Ready after {timeout:.0f} s: {explain(value)}")
        if now - said >= HEARTBEAT_SECONDS:
            said = now
            state = value.get("status", {}).get("state", "no status yet")
            say(f"  {name} is {state}: {condition(value, 'Available').get('message', '')}")
        time.sleep(1)


def set_kv_cast(kubectl: Kubectl, namespace: str, name: str, mode: str) -> None:
    """Change `attention.kvCast` as a person would."""
    patch = f'{{"spec":{{"attention":{{"kvCast":"{mode}"}}}}}}'
    kubectl.run("patch", RESOURCE, name, "-n", namespace, "--type=merge", "-p", patch)


def pod_name(kubectl: Kubectl, namespace: str, name: str) -> str:
    """Return the name of the one pod of a GLM5Deployment. Raises Failure unless there is just one that is not going."""
    pods = kubectl.get("pods", "-n", namespace, "-l", f"glm5.dev/deployment={name}")["items"]
    names = [pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    if len(names) != 1:
        raise Failure(f"{namespace}/{name} has {len(names)} pods where one was expected: {', '.join(names)}")
    return str(names[0])
