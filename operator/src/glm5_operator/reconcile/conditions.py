"""Conditions in the standard form."""

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# A condition whose status is this when all is well.
HEALTHY = {
    "Available": "True",
    "Degraded": "False",
    "BackendVerified": "True",
    "DecodeHealthy": "True",
    "PodTemplateMerged": "True",
    "ScalingActive": "True",
    "FitsGPUs": "True",
}


@dataclass(frozen=True)
class Condition:
    """One judgement. `status` is True, False, or None for unknown."""

    type: str
    status: bool | None
    reason: str
    message: str


def timestamp(now: datetime.datetime) -> str:
    """A time as Kubernetes writes it."""
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


def merge_conditions(
    previous: Iterable[Mapping[str, Any]], made: Iterable[Condition], generation: int, now: datetime.datetime
) -> list[dict[str, Any]]:
    """The conditions as the object holds them: the transition time moves only when a status does."""
    before = {entry["type"]: entry for entry in previous}
    merged = []
    for condition in made:
        status = "Unknown" if condition.status is None else str(condition.status)
        old = before.get(condition.type, {})
        since = old.get("lastTransitionTime") if old.get("status") == status else None
        merged.append(
            {
                "type": condition.type,
                "status": status,
                "observedGeneration": generation,
                "lastTransitionTime": since or timestamp(now),
                "reason": condition.reason,
                "message": condition.message,
            }
        )
    return merged
