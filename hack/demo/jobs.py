"""Jobs in the cluster: a short program in a pod, waited for, with its output."""

import json
from pathlib import Path
from typing import Any

from cluster.kubectl import Kubectl
from cluster.progress import Failure, wait_until


def job(
    name: str,
    namespace: str,
    *,
    image: str,
    command: list[str],
    script: Path | None = None,
    claim: str | None = None,
) -> list[dict[str, Any]]:
    """Objects of a Job that runs `command` unprivileged, with `script` in /script and `claim` at /models."""
    objects: list[dict[str, Any]] = []
    volumes, mounts = [{"name": "tmp", "emptyDir": {}}], [{"name": "tmp", "mountPath": "/tmp"}]
    metadata = {"name": name, "namespace": namespace}
    if script:
        objects.append(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {script.name: script.read_text()}}
        )
        volumes.append({"name": "script", "configMap": {"name": name}})
        mounts.append({"name": "script", "mountPath": "/script"})
    if claim:
        volumes.append({"name": "models", "persistentVolumeClaim": {"claimName": claim}})
        mounts.append({"name": "models", "mountPath": "/models"})
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": command,
        "volumeMounts": mounts,
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "1Gi"}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "fsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": volumes,
    }
    objects.append(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": metadata,
            "spec": {"backoffLimit": 0, "activeDeadlineSeconds": 900, "template": {"spec": pod}},
        }
    )
    return objects


def start(kubectl: Kubectl, objects: list[dict[str, Any]]) -> None:
    """Start a job anew: an earlier one of that name is deleted first, since a Job's template cannot change."""
    metadata = objects[-1]["metadata"]
    kubectl.run("delete", "job", metadata["name"], "-n", metadata["namespace"], "--ignore-not-found", "--wait=true")
    kubectl.apply(objects)


def finish(kubectl: Kubectl, name: str, namespace: str, *, timeout: float) -> str:
    """Wait for a job and return what it printed. Raises Failure with its last words when it fails."""

    def ended() -> bool:
        status = kubectl.get("job", name, "-n", namespace).get("status", {})
        kinds = {entry["type"] for entry in status.get("conditions", []) if entry["status"] == "True"}
        if "Failed" in kinds:
            words = kubectl.try_run("logs", f"job/{name}", "-n", namespace, "--tail=5").stdout.strip()
            raise Failure(f"The job {namespace}/{name} failed: {words or 'it printed nothing'}")
        return "Complete" in kinds

    hint = f"See: kubectl describe job,pod -n {namespace} -l job-name={name}"
    wait_until(f"the job {name} to end", ended, timeout=timeout, hint=hint, every=1)
    return kubectl.run("logs", f"job/{name}", "-n", namespace)


def outcome(printed: str) -> dict[str, Any]:
    """Return the JSON object on the last line that a job printed."""
    value: dict[str, Any] = json.loads(printed.strip().splitlines()[-1])
    return value
