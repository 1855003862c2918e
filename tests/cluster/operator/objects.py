"""Objects that the tests apply, and readers of what comes of them."""

import json
from typing import Any

CLAIM_SOURCE = {"persistentVolumeClaim": {"claimName": "weights"}}


def glm5(namespace: str, name: str = "glm5", **spec: Any) -> str:
    """A GLM5Deployment as JSON, which kubectl takes as YAML."""
    body = {
        "apiVersion": "glm5.dev/v1alpha1",
        "kind": "GLM5Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"model": {"source": CLAIM_SOURCE}, **spec},
    }
    return json.dumps(body)


def condition(body: dict[str, Any], kind: str) -> dict[str, Any]:
    """One condition, or an empty mapping."""
    return next((c for c in body.get("status", {}).get("conditions", []) if c["type"] == kind), {})
