"""The PodDisruptionBudget."""

from typing import Any

from .context import Context


def build_disruption_budget(context: Context) -> dict[str, Any] | None:
    """Limits voluntary evictions; None for fewer than two replicas, where it would block node drains for ever."""
    if context.spec.replicas < 2:
        return None
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": context.metadata(),
        "spec": {
            "maxUnavailable": context.spec.disruption_budget.max_unavailable,
            "selector": {"matchLabels": context.selector()},
            # A pod that is not Ready serves nobody: it may always be evicted.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
