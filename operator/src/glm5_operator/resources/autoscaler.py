"""The HorizontalPodAutoscaler."""

from typing import Any

from glm5_operator.api import names

from .context import Context


def build_autoscaler(context: Context) -> dict[str, Any] | None:
    """Scales the object through its /scale; None where no autoscaling is asked for.

    It scales the object, not the Deployment, so that one writer owns the replicas of each.
    """
    wanted = context.spec.autoscaling
    if wanted is None:
        return None
    if wanted.target_tokens_per_second is not None:
        metric, value = "glm5_decode_tokens_per_second", wanted.target_tokens_per_second
    else:
        metric, value = "sglang:num_queue_reqs", wanted.target_queue_length or 1
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": context.metadata(),
        "spec": {
            "scaleTargetRef": {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": context.name},
            "minReplicas": wanted.min_replicas,
            "maxReplicas": wanted.max_replicas,
            "metrics": [
                {
                    "type": "Pods",
                    "pods": {
                        "metric": {"name": metric},
                        "target": {"type": "AverageValue", "averageValue": str(value)},
                    },
                }
            ],
        },
    }
