"""Why pods do not run, in words, for the message of a stage that failed."""

import contextlib
from collections.abc import Iterator

from cluster.kubectl import Kubectl
from cluster.progress import Failure

LAST_LINES = 6


@contextlib.contextmanager
def explained(kubectl: Kubectl, namespace: str) -> Iterator[None]:
    """Add to a Failure of the block what the namespace's pods say: helm and kubectl only say that time is up."""
    try:
        yield
    except Failure as failure:
        raise Failure("\n".join(filter(None, [str(failure), pods_in_trouble(kubectl, namespace)]))) from None


def pods_in_trouble(kubectl: Kubectl, namespace: str) -> str:
    """Say for each pod of a namespace that is not ready what Kubernetes and its last lines say; empty when all are."""
    try:
        pods = kubectl.get("pods", "-n", namespace)["items"]
    except Failure as failure:
        return str(failure)
    lines = []
    for pod in pods:
        status = pod["status"]
        conditions = {entry["type"]: entry for entry in status.get("conditions", [])}
        if status.get("phase") == "Succeeded" or conditions.get("Ready", {}).get("status") == "True":
            continue
        name = pod["metadata"]["name"]
        scheduled = conditions.get("PodScheduled", {})
        if scheduled.get("status") == "False":
            lines.append(f"Pod {name} finds no node: {scheduled.get('message')}")
        for container in status.get("initContainerStatuses", []) + status.get("containerStatuses", []):
            waiting = container["state"].get("waiting", {})
            ended = container["state"].get("terminated") or container.get("lastState", {}).get("terminated") or {}
            if waiting or ended:
                lines.append(f"Pod {name}, container {container['name']}: {waiting.get('reason', 'ended')}.")
                said = waiting.get("message") or ended.get("message")
                lines += [f"  {line}" for line in (said or "").strip().splitlines()[-LAST_LINES:]]
    return "\n".join(lines)
