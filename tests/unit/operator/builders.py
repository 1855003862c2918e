"""Objects that the tests start from."""

from typing import Any

from glm5_operator.api.spec import GLM5DeploymentSpec
from glm5_operator.resources.context import Context
from glm5_operator.settings import Settings

CLAIM = {"model": {"source": {"persistentVolumeClaim": {"claimName": "weights"}}}}


def merged(base: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    made = dict(base)
    for key, value in extra.items():
        both_mappings = isinstance(value, dict) and isinstance(made.get(key), dict)
        made[key] = merged(made[key], value) if both_mappings else value
    return made


def context(extra: dict[str, Any] | None = None, *, name: str = "glm5", **settings: Any) -> Context:
    spec = GLM5DeploymentSpec.model_validate(merged(CLAIM, extra or {}))
    return Context(name, "models", "uid-1", spec, Settings(**settings))


def pod(name: str = "glm5-a", **status: Any) -> dict[str, Any]:
    labels = {
        "app.kubernetes.io/component": "server",
        "glm5.dev/deployment": "glm5",
        "pod-template-hash": "h1",
    }
    metadata = {"name": name, "namespace": "models", "uid": name, "labels": labels}
    return {"metadata": metadata, "spec": {"nodeName": "node-1"}, "status": {"phase": "Running", **status}}


def ready_pod(name: str = "glm5-a") -> dict[str, Any]:
    running = {"name": "server", "started": True, "restartCount": 0, "state": {"running": {"startedAt": NOW_TEXT}}}
    return pod(
        name,
        podIP="192.0.2.1",
        conditions=[{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}],
        containerStatuses=[running],
    )


NOW_TEXT = "2026-01-02T03:04:05Z"
