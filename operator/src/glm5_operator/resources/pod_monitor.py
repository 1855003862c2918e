"""The PodMonitor, for clusters with the Prometheus operator."""

from typing import Any

from glm5_operator.api import names

from .context import HTTP_PORT_NAME, METRICS_PORT_NAME, Context


def build_pod_monitor(context: Context, *, api_present: bool) -> dict[str, Any] | None:
    """Scrapes the exporter and SGLang of each pod; None where it is not wanted or the cluster lacks the API."""
    wanted = context.spec.monitoring.pod_monitor
    if wanted == "Never" or (wanted == "Auto" and not api_present):
        return None
    metadata = context.metadata()
    metadata["labels"] = context.spec.monitoring.labels | metadata["labels"]
    # SGLang's own series don't know the object they belong to; the exporter's carry its name already.
    deployment = {
        "sourceLabels": [f"__meta_kubernetes_pod_label_{names.DEPLOYMENT_LABEL.replace('.', '_').replace('/', '_')}"],
        "targetLabel": "deployment",
    }
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": metadata,
        "spec": {
            "selector": {"matchLabels": context.selector()},
            "podMetricsEndpoints": [
                {"port": METRICS_PORT_NAME, "path": "/metrics", "interval": "5s"},
                {"port": HTTP_PORT_NAME, "path": "/metrics", "interval": "15s", "relabelings": [deployment]},
            ],
        },
    }
