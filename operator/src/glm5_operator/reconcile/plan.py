"""From what is wanted and what is there to the writes that are needed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glm5_operator.resources.autoscaler import build_autoscaler
from glm5_operator.resources.context import Context
from glm5_operator.resources.deployment import build_deployment
from glm5_operator.resources.disruption_budget import build_disruption_budget
from glm5_operator.resources.pod_monitor import build_pod_monitor
from glm5_operator.resources.pod_template import merged_pod_template
from glm5_operator.resources.service import build_service

from .difference import agrees, digest_of, projection, spec_hash, with_hash

Manifest = dict[str, Any]

# In the order in which they are written. The Deployment first: its pods load for minutes and need nothing of the
# others, while the API server gives out the addresses of Services one at a time: many new ones wait for each other.
CHILD_KINDS = ("Deployment", "Service", "PodDisruptionBudget", "PodMonitor", "HorizontalPodAutoscaler")


@dataclass(frozen=True)
class Apply:
    """Send this child to the server."""

    manifest: Manifest
    restores: bool
    """Whether somebody else changed or deleted what we had applied."""


@dataclass(frozen=True)
class Delete:
    """Remove this child, which is no longer wanted."""

    kind: str
    name: str


@dataclass(frozen=True)
class Applied:
    """Digests of what we sent last and of what the server made of it (webhooks and defaults may rewrite values)."""

    sent: str
    result: str


def wanted_children(context: Context, *, pod_monitor_api: bool) -> dict[str, Manifest]:
    """The children by kind, in the order of CHILD_KINDS."""
    built = {
        "Service": build_service(context),
        "PodDisruptionBudget": build_disruption_budget(context),
        "PodMonitor": build_pod_monitor(context, api_present=pod_monitor_api),
        "HorizontalPodAutoscaler": build_autoscaler(context),
        "Deployment": build_deployment(context, merged_pod_template(context)[0]),
    }
    return {kind: with_hash(manifest) for kind in CHILD_KINDS if (manifest := built[kind]) is not None}


def plan(
    wanted: Mapping[str, Manifest], live: Mapping[str, Manifest], applied: Mapping[str, Applied], owner_uid: str
) -> list[Apply | Delete]:
    """The writes that bring `live` (children by kind) to `wanted`. An empty list when they agree.

    A live child of another owner is never deleted.
    """
    actions: list[Apply | Delete] = []
    for kind in CHILD_KINDS:
        if kind in wanted:
            if (action := _apply(wanted[kind], live.get(kind), applied.get(kind))) is not None:
                actions.append(action)
        elif kind in live and owned(live[kind], owner_uid):
            actions.append(Delete(kind, live[kind]["metadata"]["name"]))
    return actions


def owned(child: Manifest, owner_uid: str) -> bool:
    """Whether this object is the child's controller."""
    references = child["metadata"].get("ownerReferences", [])
    return any(reference.get("controller") and reference.get("uid") == owner_uid for reference in references)


def foreign_controller(child: Manifest, owner_uid: str) -> str | None:
    """`Kind/name` of another controller that owns this child; None where the child is ours or nobody's."""
    for reference in child["metadata"].get("ownerReferences", []):
        if reference.get("controller") and reference.get("uid") != owner_uid:
            return f"{reference.get('kind')}/{reference.get('name')}"
    return None


def _apply(wanted: Manifest, live: Manifest | None, applied: Applied | None) -> Apply | None:
    digest = spec_hash(wanted)
    known = applied is not None and applied.sent == digest
    if live is None:
        return Apply(wanted, restores=known)
    if agrees(live, wanted):
        return None
    if known and applied is not None and digest_of(projection(live, wanted)) == applied.result:
        return None
    return Apply(wanted, restores=spec_hash(live) == digest or known)
