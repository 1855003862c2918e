"""The operator's own metrics."""

from collections import Counter as Counts
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from .reconcile.conditions import HEALTHY

_STATUSES = ("True", "False", "Unknown")

# From a pass that writes nothing (about a millisecond) to one that waits for a slow API server.
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Everything that the operator counts, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconciles = Counter(
            "glm5_operator_reconcile",
            "Passes over one object, by result: unchanged, changed, refused or error.",
            ["result"],
            registry=self.registry,
        )
        self.reconcile_seconds = Histogram(
            "glm5_operator_reconcile_seconds", "Time of one pass.", buckets=_SECONDS, registry=self.registry
        )
        self.queue_depth = Gauge("glm5_operator_queue_depth", "Objects that wait for a pass.", registry=self.registry)
        self.queue_seconds = Histogram(
            "glm5_operator_queue_seconds",
            "Time from an event until the pass over its object starts.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.api_requests = Counter(
            "glm5_operator_api_requests",
            "Requests to the API server, without watches, by method, kind and HTTP code; code 0 means no answer.",
            ["method", "kind", "code"],
            registry=self.registry,
        )
        self.decode_reads = Counter(
            "glm5_operator_decode_reads",
            "Reads of pods' decode figures by result: ok, error or invalid.",
            ["result"],
            registry=self.registry,
        )
        self.leader = Gauge(
            "glm5_operator_leader", "1 while this process acts, 0 while it waits.", registry=self.registry
        )
        self.deployments = Gauge(
            "glm5_operator_deployments", "GLM5Deployments by state.", ["state"], registry=self.registry
        )
        self.available = Gauge(
            "glm5_deployment_available",
            "1 while at least one pod of the GLM5Deployment answers.",
            ["namespace", "deployment"],
            registry=self.registry,
        )
        self.condition = Gauge(
            "glm5_deployment_condition",
            "1 for the status that each condition of a GLM5Deployment has.",
            ["namespace", "deployment", "type", "status"],
            registry=self.registry,
        )
        self._states: dict[tuple[str, str], str] = {}

    def tell(self, namespace: str, name: str, status: Mapping[str, Any]) -> None:
        """Shows what an object's status says."""
        conditions = {entry["type"]: entry["status"] for entry in status["conditions"]}
        if status["state"] == "Stopped":
            self.available.remove(namespace, name)
        else:
            self.available.labels(namespace, name).set(conditions.get("Available") == "True")
        for kind, value in conditions.items():
            for each in _STATUSES:
                self.condition.labels(namespace, name, kind, each).set(each == value)
        self._forget_conditions(namespace, name, HEALTHY.keys() - conditions.keys())
        self._count(namespace, name, status["state"])

    def forget(self, namespace: str, name: str) -> None:
        """Removes the series of an object that is gone."""
        self.available.remove(namespace, name)
        self._forget_conditions(namespace, name, (*HEALTHY, "Progressing"))
        self._count(namespace, name, None)

    def _forget_conditions(self, namespace: str, name: str, kinds: Iterable[str]) -> None:
        # One by one: remove_by_labels looks at the series of all objects.
        for kind in kinds:
            for each in _STATUSES:
                self.condition.remove(namespace, name, kind, each)

    def _count(self, namespace: str, name: str, state: str | None) -> None:
        before = self._states.pop((namespace, name), None)
        if state is not None:
            self._states[namespace, name] = state
        if before == state:
            return
        counts = Counts(self._states.values())
        for changed in (before, state):
            if changed is None:
                continue
            if counts[changed]:
                self.deployments.labels(changed).set(counts[changed])
            else:
                self.deployments.remove(changed)
