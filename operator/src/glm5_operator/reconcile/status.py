"""`status`: what is known about an object, said so that a tired person can act on it."""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from glm5_operator.resources.context import Context
from glm5_operator.resources.pod_template import merged_pod_template

from .conditions import HEALTHY, Condition, merge_conditions
from .decode import Reading, combine, next_decode, unhealthy
from .fit import fits
from .pods import PodView, refusal_of

_MAX_PODS = 100


@dataclass(frozen=True)
class Problem:
    """Why a write that was needed did not succeed."""

    reason: str
    message: str


@dataclass(frozen=True)
class Observed:
    """What is known about an object's children at one moment."""

    deployment: Mapping[str, Any] | None
    """The Deployment as the server holds it; None where there is none."""
    deployment_current: bool
    """Whether that Deployment was made from the current spec."""
    pods: Sequence[PodView]
    readings: Mapping[str, Reading | None]
    """Each asked pod's decode figures by pod name; None where it gave no answer."""
    problems: Sequence[Problem] = field(default=())
    autoscaler: Mapping[str, Any] | None = None
    """The HorizontalPodAutoscaler as the server holds it; None where there is none."""


def build_status(
    context: Context,
    generation: int,
    observed: Observed,
    previous: Mapping[str, Any],
    now: datetime.datetime,
) -> dict[str, Any]:
    """The whole status of an accepted object."""
    ready = [pod for pod in observed.pods if pod.ready]
    readings = {pod.name: reading for pod in ready if (reading := observed.readings.get(pod.name)) is not None}
    conditions = [
        _available(context, observed, ready),
        _progressing(context, observed, ready),
        _degraded(context, observed, ready),
        _backend_verified(context, observed, ready, readings),
        _decode_healthy(context, ready, readings),
    ]
    if context.spec.pod_template:
        conditions.append(_pod_template_merged(context))
    if context.spec.autoscaling is not None:
        conditions.append(_scaling_active(observed))
    model = _model(context, observed, previous.get("model"))
    serves = any(pod.current for pod in ready)
    if not serves and (fit := fits(context, model.get("weightBytes"))) is not None:
        conditions.append(fit)
    status: dict[str, Any] = {
        "observedGeneration": generation,
        "replicas": len(observed.pods),
        "readyReplicas": len(ready),
        "updatedReplicas": sum(pod.current for pod in observed.pods),
        "selector": ",".join(f"{key}={value}" for key, value in context.selector().items()),
        "url": context.url,
        "image": context.image,
        "ready": f"{len(ready)}/{context.spec.replicas}",
        "state": _state(context, observed, ready),
        "conditions": merge_conditions(previous.get("conditions", []), conditions, generation, now),
        "pods": [_pod_status(pod) for pod in observed.pods[:_MAX_PODS]],
    }
    if model:
        status["model"] = model
    backends = [reading.backend for reading in readings.values() if reading.backend is not None]
    if backends:
        said = backends[0].model_dump(by_alias=True, exclude={"verified"})
        status["backend"] = {key: value for key, value in said.items() if value}
    interval = context.settings.decode_status_seconds
    decode = next_decode(previous.get("decode"), combine(list(readings.values())), now, interval)
    if decode is not None:
        status["decode"] = decode
    return status


def refused_status(
    spec: Mapping[str, Any],
    generation: int,
    problem: Problem,
    previous: Mapping[str, Any],
    pods: int,
    ready: int,
    now: datetime.datetime,
) -> dict[str, Any]:
    """The status of an object that is not carried out. What it had before keeps running, and is only counted."""
    if ready:
        available = Condition("Available", True, "Serving", f"{ready} pod(s) of an earlier spec answer")
    else:
        available = Condition("Available", False, problem.reason, problem.message)
    conditions = [
        available,
        Condition("Progressing", False, problem.reason, problem.message),
        Condition("Degraded", True, problem.reason, problem.message),
        Condition("BackendVerified", None, problem.reason, "not judged while the object is not carried out"),
        Condition("DecodeHealthy", None, problem.reason, "not judged while the object is not carried out"),
    ]
    return {
        **{key: previous[key] for key in ("selector", "url", "image") if key in previous},
        "observedGeneration": generation,
        "replicas": pods,
        "readyReplicas": ready,
        "ready": f"{ready}/{spec.get('replicas', 1)}",
        "state": "Refused",
        "conditions": merge_conditions(previous.get("conditions", []), conditions, generation, now),
    }


def _model(context: Context, observed: Observed, previous: Mapping[str, Any] | None) -> dict[str, Any]:
    """A hub's model and the bytes of its weights, which only a pod that downloads it can tell; then remembered."""
    hub = context.spec.model.source.hugging_face
    if hub is None:
        return {}
    source = f"{hub.repo}@{hub.revision}"
    for pod in observed.pods:
        reading = observed.readings.get(pod.name)
        if pod.current and reading is not None and reading.download is not None and reading.download.weights:
            return {"source": source, "weightBytes": reading.download.weights}
    return dict(previous) if previous and previous.get("source") == source else {}


def _pod_status(pod: PodView) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": pod.name, "phase": pod.phase, "restarts": pod.restarts}
    for key in ("node", "reason", "message"):
        if value := getattr(pod, key):
            entry[key] = value
    return entry


def _rollout_complete(context: Context, observed: Observed, ready: Sequence[PodView]) -> bool:
    wanted = context.spec.replicas
    if observed.deployment is None or not observed.deployment_current:
        return False
    status = observed.deployment.get("status", {})
    if status.get("observedGeneration", 0) < observed.deployment["metadata"].get("generation", 0):
        return False
    return len(observed.pods) == wanted and len(ready) == wanted and all(pod.current for pod in observed.pods)


def _deployment_condition(observed: Observed, kind: str) -> Mapping[str, Any]:
    conditions = (observed.deployment or {}).get("status", {}).get("conditions", [])
    return next((entry for entry in conditions if entry["type"] == kind), {})


def _failure(context: Context, observed: Observed) -> Problem | None:
    """What stands in the way of the wanted pods; None where nothing but time does."""
    if observed.problems:
        return observed.problems[0]
    refused = _deployment_condition(observed, "ReplicaFailure")
    if refused.get("status") == "True" and len(observed.pods) < context.spec.replicas:
        message = refused.get("message", "")
        reason = "QuotaExceeded" if "exceeded quota" in message else "PodRefused"
        return Problem(reason, f"the API server refuses the pods: {message}")
    for pod in observed.pods:
        if pod.failing:
            return Problem(pod.reason, f"pod {pod.name}: {pod.message}")
    stuck = _deployment_condition(observed, "Progressing")
    if stuck.get("reason") == "ProgressDeadlineExceeded" and observed.deployment_current:
        waiting = next((pod for pod in observed.pods if not pod.ready), None)
        detail = f" Pod {waiting.name}: {waiting.message}" if waiting else ""
        return Problem("ProgressDeadlineExceeded", f"the rollout made no progress within its deadline.{detail}")
    return None


def _available(context: Context, observed: Observed, ready: Sequence[PodView]) -> Condition:
    wanted = context.spec.replicas
    if ready:
        return Condition("Available", True, "Serving", f"{len(ready)} of {wanted} pod(s) answer at {context.url}")
    if wanted == 0:
        return Condition("Available", False, "Stopped", "spec.replicas is 0: raise it to serve")
    failure = _failure(context, observed)
    if failure is not None:
        return Condition("Available", False, failure.reason, failure.message)
    reason, message = _waiting(observed)
    return Condition("Available", False, reason, message)


def _waiting(observed: Observed) -> tuple[str, str]:
    for pod in observed.pods:
        if not pod.ready:
            return pod.reason, f"pod {pod.name}: {pod.message}"
    return "Creating", "the pods are being created"


def _progressing(context: Context, observed: Observed, ready: Sequence[PodView]) -> Condition:
    failure = _failure(context, observed)
    if failure is not None:
        return Condition("Progressing", False, failure.reason, failure.message)
    if _rollout_complete(context, observed, ready):
        return Condition("Progressing", False, "Complete", "the pods are what the spec asks for")
    old = sum(not pod.current for pod in observed.pods)
    if old and ready:
        first = next((pod for pod in observed.pods if not pod.ready), None)
        detail = f"; pod {first.name}: {first.message}" if first else ""
        return Condition("Progressing", True, "Updating", f"{old} pod(s) of the former spec are being replaced{detail}")
    if len(observed.pods) > context.spec.replicas:
        return Condition("Progressing", True, "ScalingDown", f"{len(observed.pods)} pods go to {context.spec.replicas}")
    reason, message = _waiting(observed)
    return Condition("Progressing", True, reason, message)


def _degraded(context: Context, observed: Observed, ready: Sequence[PodView]) -> Condition:
    failure = _failure(context, observed)
    if failure is not None:
        return Condition("Degraded", True, failure.reason, failure.message)
    if any(pod.reason == "Restarting" for pod in observed.pods):
        pod = next(pod for pod in observed.pods if pod.reason == "Restarting")
        return Condition("Degraded", True, "Restarting", f"pod {pod.name}: {pod.message}")
    return Condition("Degraded", False, "AsExpected", "nothing stands in the way")


def _backend_verified(
    context: Context, observed: Observed, ready: Sequence[PodView], readings: Mapping[str, Reading]
) -> Condition:
    for pod in observed.pods:
        refused = None if pod.ready else refusal_of(pod.termination)
        if refused is not None:
            return Condition("BackendVerified", False, refused[0], f"pod {pod.name} refuses to serve: {refused[1]}")
    if context.spec.attention.algorithm == "Sparse":
        return Condition("BackendVerified", None, "SparseAttention", "algorithm Sparse uses SGLang's own kernels")
    if not ready:
        return Condition("BackendVerified", None, "NoReadyPod", "no pod is ready to be asked")
    hung = [name for name, reading in readings.items() if reading.backend is None]
    for name, reading in readings.items():
        backend = reading.backend
        if backend is None:
            continue
        if not backend.verified:
            return Condition("BackendVerified", False, "NotInUse", f"pod {name} does not run this project's backend")
        if backend.kv_cast != context.spec.attention.kv_cast and all(pod.current for pod in ready):
            return Condition(
                "BackendVerified",
                False,
                "OtherKvCast",
                f"pod {name} runs kvCast {backend.kv_cast}, the spec asks for {context.spec.attention.kv_cast}",
            )
    if hung:
        message = f"rank 0 of pod {hung[0]} reports no backend: it hangs, or runs without this project's plugin"
        return Condition("BackendVerified", None, "RankSilent", message)
    if len(readings) < len(ready):
        silent = next(pod.name for pod in ready if pod.name not in readings)
        return Condition("BackendVerified", None, "ExporterSilent", f"pod {silent}'s exporter on :9408 gives no answer")
    kernels = sorted({reading.backend.kernel for reading in readings.values() if reading.backend is not None})
    message = f"{len(readings)} pod(s) run kvCast {context.spec.attention.kv_cast} with kernel {', '.join(kernels)}"
    return Condition("BackendVerified", True, "Verified", message)


def _decode_healthy(context: Context, ready: Sequence[PodView], readings: Mapping[str, Reading]) -> Condition:
    if not ready:
        return Condition("DecodeHealthy", None, "NoReadyPod", "no pod is ready to be asked")
    for name, reading in readings.items():
        if (found := unhealthy(reading, context.spec.attention.kv_cast)) is not None:
            return Condition("DecodeHealthy", False, found[0], f"pod {name}: {found[1]}")
    if len(readings) < len(ready):
        silent = next(pod.name for pod in ready if pod.name not in readings)
        return Condition("DecodeHealthy", None, "ExporterSilent", f"pod {silent}'s exporter on :9408 gives no answer")
    if not any(reading.window.steps for reading in readings.values()):
        return Condition("DecodeHealthy", None, "Idle", "no decode step was made in the last seconds")
    return Condition("DecodeHealthy", True, "AsExpected", "steps end in time and ranks keep pace")


def _pod_template_merged(context: Context) -> Condition:
    kept = merged_pod_template(context)[1]
    if not kept:
        return Condition("PodTemplateMerged", True, "AsWished", "spec.podTemplate is merged into the pod")
    message = f"kept as generated, since the server would not work otherwise: {', '.join(kept[:10])}"
    return Condition("PodTemplateMerged", False, "FieldsKept", message)


def _scaling_active(observed: Observed) -> Condition:
    """What the HorizontalPodAutoscaler says of itself: where it can't read its metric it does nothing, silently."""
    judged = (observed.autoscaler or {}).get("status", {}).get("conditions") or []
    said = {entry["type"]: entry for entry in judged}
    told = said.get("AbleToScale", {})
    if told.get("status") != "False":
        told = said.get("ScalingActive", {})
    if told.get("status") not in ("True", "False"):
        return Condition("ScalingActive", None, "NotYetJudged", "the HorizontalPodAutoscaler has not said anything yet")
    if told.get("reason") == "ScalingDisabled":
        return Condition("ScalingActive", None, "ScalingDisabled", "spec.replicas is 0: raise it, and scaling goes on")
    message = str(told.get("message", ""))
    if "no custom metrics API" in message:
        message = (
            "no adapter serves custom metrics in this cluster, so nothing is scaled: install one with the rules in "
            "manifests/samples/autoscaling-prometheus-adapter.yaml, or leave spec.autoscaling out and scale by KEDA "
            "(manifests/samples/autoscaling-keda.yaml)"
        )
    return Condition("ScalingActive", told["status"] == "True", told.get("reason") or "NotGiven", message[:1000])


def _state(context: Context, observed: Observed, ready: Sequence[PodView]) -> str:
    failure = _failure(context, observed)
    if context.spec.replicas == 0 and failure is None:
        return "Draining" if observed.pods else "Stopped"
    if failure is not None:
        return failure.reason if not ready else "Degraded"
    if _rollout_complete(context, observed, ready):
        return "Ready"
    if ready and any(not pod.current for pod in observed.pods):
        return "Updating"
    if len(ready) >= context.spec.replicas:
        return "Updating" if not observed.deployment_current else "Ready"
    waiting = next((pod for pod in observed.pods if pod.phase == "Waiting"), None)
    if waiting is not None:
        return waiting.reason
    if observed.pods and all(pod.phase == "Draining" for pod in observed.pods):
        return "Draining"
    return "Starting"


def transitions(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """Events worth telling: (Normal or Warning, reason, message) for each condition whose status or reason changed.

    Progressing and unknown states are left out: they come and go on the way.
    """
    old = {entry["type"]: entry for entry in before}
    told = []
    for entry in after:
        kind, last = entry["type"], old.get(entry["type"], {})
        if kind == "Progressing" or entry["status"] == "Unknown":
            continue
        if (last.get("status"), last.get("reason")) == (entry["status"], entry["reason"]):
            continue
        good = entry["status"] == HEALTHY[kind]
        if good and (not last or last.get("status") == "Unknown") and kind != "Available":
            continue
        if kind == "Available" and not good and last.get("status") != "True":
            continue
        told.append(
            ("Normal" if good else "Warning", entry["reason"], f"{kind} is {entry['status']}: {entry['message']}")
        )
    return told
