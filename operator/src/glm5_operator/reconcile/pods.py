"""What a pod is doing, or what is wrong with it, in words that a person can act on."""

import datetime
import json
import re
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from glm5_operator.api.base import seconds
from glm5_operator.resources.containers import (
    DOWNLOAD_CONTAINER,
    EXPORTER_CONTAINER,
    PROBE_PERIOD_SECONDS,
    SERVER_CONTAINER,
)
from glm5_operator.resources.context import Context
from glm5_operator.resources.deployment import grace_seconds

from .decode import Download
from .redact import last_lines, redact

# The launcher's exit code for "I refuse to serve"; its termination message says why.
REFUSED_EXIT_CODE = 78

# What containerd before 2.1 says of an image volume: it ignores the field, and the mount has no source.
_NO_IMAGE_VOLUMES = 'failed to mkdir ""'

# A server that the kubelet ended: by SIGTERM, or by SIGKILL after the grace period.
_ENDED_BY_KUBELET = (128 + signal.SIGTERM, 128 + signal.SIGKILL)

# A pod past its grace period by this much is on a node that no longer answers.
_LOST_AFTER_SECONDS = 60

# The reason of a pod that is on a node and has no container yet: only events tell what may be wrong.
CREATING = "ContainerCreating"

_IMAGE_REASONS = ("ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError")


@dataclass(frozen=True)
class PodView:
    """One pod, judged."""

    name: str
    node: str
    phase: str
    """Ready, Starting, Waiting, Failing, Draining or Pending."""
    reason: str = ""
    message: str = ""
    restarts: int = 0
    current: bool = True
    """Whether it was made from the current spec."""
    address: str = ""
    exporter_running: bool = False
    termination: Mapping[str, Any] = field(default_factory=dict)
    """The server's last termination, as the kubelet reports it."""

    @property
    def ready(self) -> bool:
        """Whether it answers requests."""
        return self.phase == "Ready"

    @property
    def failing(self) -> bool:
        """Whether it will not get Ready unless somebody acts."""
        return self.phase == "Failing"


def parse_time(text: str) -> datetime.datetime:
    """A Kubernetes timestamp."""
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))


def view_pods(
    pods: Iterable[Mapping[str, Any]],
    context: Context,
    now: datetime.datetime,
    current_hash: str | None,
    downloads: Mapping[str, Download] | None = None,
    warnings: Mapping[str, tuple[str, str]] | None = None,
) -> list[PodView]:
    """All pods of an object, judged, those with trouble first.

    `current_hash` is the pod-template-hash of the current spec, where it is known. By pod name: `downloads`, and
    `warnings` (reason and message) that the kubelet told of pods whose containers it can't create.
    """
    listed = _without_history(list(pods), context.spec.replicas)
    draining = any(pod["metadata"].get("deletionTimestamp") and not _is_lost(pod, now) for pod in listed)
    order = ("Failing", "Waiting", "Pending", "Starting", "Draining", "Ready")
    views = [_view(pod, context, now, current_hash, draining, downloads or {}, warnings or {}) for pod in listed]
    return sorted(views, key=lambda view: (order.index(view.phase), view.name))


def _without_history(pods: list[Mapping[str, Any]], wanted: int) -> list[Mapping[str, Any]]:
    """Without pods that ended and have been replaced: they stay listed, but say nothing about the present.

    While fewer pods live than are wanted, the one that ended last stays: it tells why.
    """
    ended = [pod for pod in pods if pod.get("status", {}).get("phase") in ("Failed", "Succeeded")]
    living = [pod for pod in pods if pod not in ended]
    if ended and len(living) < wanted:
        living.append(max(ended, key=lambda pod: str(pod["metadata"].get("creationTimestamp", ""))))
    return living


def _view(
    pod: Mapping[str, Any],
    context: Context,
    now: datetime.datetime,
    current_hash: str | None,
    draining: bool,
    downloads: Mapping[str, Download],
    warnings: Mapping[str, tuple[str, str]],
) -> PodView:
    status = pod.get("status", {})
    statuses = {
        entry["name"]: entry
        for entry in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    }
    server = statuses.get(SERVER_CONTAINER, {})
    phase, reason, message = _judge(pod, statuses, context, now, draining)
    if reason == "Downloading" and (download := downloads.get(pod["metadata"]["name"])) is not None:
        message = f"{message}: {_progress(download)}"
    if reason == CREATING and (warning := warnings.get(pod["metadata"]["name"])) is not None:
        phase, (reason, message) = "Failing", _explain_warning(*warning, context)
    template_hash = pod["metadata"].get("labels", {}).get("pod-template-hash")
    return PodView(
        name=pod["metadata"]["name"],
        node=pod.get("spec", {}).get("nodeName", ""),
        phase=phase,
        reason=reason,
        message=message[:1000],
        restarts=server.get("restartCount", 0),
        current=current_hash is None or template_hash == current_hash,
        address=status.get("podIP", ""),
        exporter_running="running" in statuses.get(EXPORTER_CONTAINER, {}).get("state", {}),
        termination=_termination(server) or {},
    )


def _judge(
    pod: Mapping[str, Any],
    statuses: Mapping[str, Any],
    context: Context,
    now: datetime.datetime,
    draining: bool,
) -> tuple[str, str, str]:
    status = pod.get("status", {})
    if status.get("phase") != "Failed" and _is_lost(pod, now):
        return "Failing", "NodeLost", _explain_loss(pod)
    if (deleted := pod["metadata"].get("deletionTimestamp")) is not None:
        deadline = parse_time(deleted)
        return "Draining", "Draining", f"finishes its generations until {deadline:%H:%M:%S} UTC at the latest"
    if status.get("phase") == "Failed":
        return _judge_failed(status, statuses, context)
    conditions = {entry["type"]: entry for entry in status.get("conditions", [])}
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return _judge_unscheduled(scheduled, context, draining)
    if conditions.get("Ready", {}).get("status") == "True":
        return "Ready", "", ""
    for name in (DOWNLOAD_CONTAINER, EXPORTER_CONTAINER, SERVER_CONTAINER):
        if (found := _judge_container(name, statuses.get(name, {}), context)) is not None:
            return found
    return _judge_starting(pod, statuses, context, now)


def _is_lost(pod: Mapping[str, Any], now: datetime.datetime) -> bool:
    """Whether the pod's node no longer answers.

    The node controller then sets a ready pod's Ready to False and touches nothing else. The kubelet would have set
    ContainersReady as well, or a reason. A pod that was not ready shows only in that it outlives its grace period.
    """
    if not pod.get("spec", {}).get("nodeName"):
        return False
    conditions = {entry["type"]: entry for entry in pod.get("status", {}).get("conditions", [])}
    ready = conditions.get("Ready", {})
    if (
        ready.get("status") == "False"
        and not ready.get("reason")
        and conditions.get("ContainersReady", {}).get("status") == "True"
    ):
        return True
    deleted = pod["metadata"].get("deletionTimestamp")
    return deleted is not None and (now - parse_time(deleted)).total_seconds() > _LOST_AFTER_SECONDS


def _explain_loss(pod: Mapping[str, Any]) -> str:
    name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
    if pod["metadata"].get("deletionTimestamp") is None:
        return (
            f"node {node} does not answer: see kubectl describe node {node}. Unless it comes back, pod {name} is "
            "replaced after the pod's tolerationSeconds, by default 5 minutes (not while none of the nodes answers)"
        )
    return (
        f"node {node} does not answer, so pod {name} can't be seen to end; its GPUs and volumes stay taken. When the "
        f"node comes back this heals by itself. If the machine is really off: kubectl taint node {node} "
        "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
    )


def _judge_failed(status: Mapping[str, Any], statuses: Mapping[str, Any], context: Context) -> tuple[str, str, str]:
    reason = status.get("reason") or "PodFailed"
    message = redact(status.get("message") or "")
    if reason == "Evicted":
        return "Failing", "Evicted", f"the kubelet evicted the pod: {message}"
    if reason.startswith("OutOf") or reason == "UnexpectedAdmissionError":
        return "Failing", "NodeRefused", f"the node refused the pod ({reason}): {message}"
    ended = _termination(statuses.get(SERVER_CONTAINER, {}))
    if ended is not None:
        return "Failing", *_explain_end(SERVER_CONTAINER, ended, context)
    return "Failing", reason, message or "the pod failed and says no more"


def _judge_unscheduled(condition: Mapping[str, Any], context: Context, draining: bool) -> tuple[str, str, str]:
    message = condition.get("message", "")
    if condition.get("reason") == "SchedulingGated":
        return "Waiting", "SchedulingGated", "a scheduling gate holds the pod; what set it must remove it"
    gpus = context.spec.gpus
    if (claim := re.search(r'persistentvolumeclaim "([^"]+)" (not found|is being deleted)', message)) is not None:
        return (
            "Failing",
            "ClaimNotFound",
            f"PersistentVolumeClaim {claim[1]} {claim[2]} in namespace {context.namespace}: create it, or name another",
        )
    if "unbound immediate PersistentVolumeClaims" in message or "unbound PersistentVolumeClaim" in message:
        return (
            "Waiting",
            "ClaimNotBound",
            "a PersistentVolumeClaim of the pod is not bound to a volume: see kubectl describe pvc; is there a "
            "StorageClass or a fitting PersistentVolume?",
        )
    if f"Insufficient {gpus.resource_name}" in message:
        wanted = f"{gpus.count} {gpus.resource_name}"
        if draining:
            return "Waiting", "WaitingForGPU", f"waits for {wanted}: the old copy is still draining on them"
        return (
            "Waiting",
            "WaitingForGPU",
            f"no node has {wanted} free. Scheduler: {message}",
        )
    if "node(s) didn't match Pod's node affinity/selector" in message and gpus.product:
        return (
            "Waiting",
            "NoMatchingNode",
            f"no free node carries label nvidia.com/gpu.product={gpus.product}. Scheduler: {message}",
        )
    return "Waiting", condition.get("reason") or "Unschedulable", f"Scheduler: {message}"


def _judge_container(name: str, entry: Mapping[str, Any], context: Context) -> tuple[str, str, str] | None:
    waiting = entry.get("state", {}).get("waiting", {})
    # containerd tells a container's id, a new one at each attempt: it helps nobody and would be written each time.
    reason, message = waiting.get("reason", ""), re.sub(r' "[0-9a-f]{64}"', "", redact(waiting.get("message", "")))
    model = context.spec.model.source.image
    if reason in _IMAGE_REASONS:
        if model is not None and f'"{model.reference}"' in message:
            return "Failing", "ImagePull", f"image {model.reference} of spec.model.source.image: {message}"
        return "Failing", "ImagePull", f"image {entry.get('image') or context.image} of container {name}: {message}"
    if reason == "CreateContainerConfigError":
        if (secret := re.search(r'secret "?([^" ]+)"? not found', message)) is not None:
            return (
                "Failing",
                "SecretNotFound",
                f"Secret {secret[1]} is missing in namespace {context.namespace}: create it",
            )
        return "Failing", "ContainerConfig", f"container {name} can't be made: {message}"
    if reason == "CreateContainerError" and model is not None and _NO_IMAGE_VOLUMES in message:
        return (
            "Failing",
            "ImageVolumeUnsupported",
            "the node's container runtime can't mount spec.model.source.image as a volume (containerd can from version "
            f"2.1 on): upgrade it, or take the weights from another source. Its words: {message}",
        )
    if reason in ("CreateContainerError", "RunContainerError", "StartError"):
        return "Failing", "ContainerStart", f"container {name} can't be started: {message}"
    ended = _termination(entry)
    if ended is None or (name == DOWNLOAD_CONTAINER and ended.get("exitCode") == 0):
        return None
    if reason == "CrashLoopBackOff" or "terminated" in entry.get("state", {}):
        return "Failing", *_explain_end(name, ended, context)
    return None


def _explain_end(container: str, ended: Mapping[str, Any], context: Context) -> tuple[str, str]:
    """Reason and message for a container that ended."""
    code, text = ended.get("exitCode"), ended.get("message", "")
    if (refused := refusal_of(ended)) is not None:
        return refused
    if ended.get("reason") == "OOMKilled":
        return "OutOfMemory", f"container {container} used more memory than its limit: raise spec.server.resources"
    if container == SERVER_CONTAINER and _startup_timed_out(ended, context):
        return (
            "StartupTimeout",
            f"the server gave no answer within spec.startup.timeout ({context.spec.startup.timeout}) and was "
            "restarted: raise it, or see the pod's log for what takes so long",
        )
    by_signal = f" (signal {code - 128})" if isinstance(code, int) and 128 < code < 192 else ""
    if (
        argument := re.search(r"error: ((?:unrecognized arguments|argument [^:]+|ambiguous option).*)", text)
    ) is not None:
        return "BadArgument", f"SGLang does not accept its arguments: {redact(argument[1])[:400]}"
    log = (
        f"; last log lines: {last_lines(text)}" if text.strip() else "; it left no message: see kubectl logs --previous"
    )
    name = {"download": "DownloadFailed", "exporter": "ExporterCrash"}.get(container, "Crash")
    return name, f"container {container} exited with code {code}{by_signal}{log}"


def _explain_warning(reason: str, message: str, context: Context) -> tuple[str, str]:
    """Reason and message for a kubelet's event about a pod without containers."""
    if (missing := re.search(r'(secret|configmap) "([^"]+)" not found', message)) is not None:
        kind = {"secret": "Secret", "configmap": "ConfigMap"}[missing[1]]
        return f"{kind}NotFound", f"{kind} {missing[2]} is missing in namespace {context.namespace}: create it"
    if (key := re.search(r"references non-existent (?:secret|config) key: (\S+)", message)) is not None:
        return "SecretKeyNotFound", f"a Secret that the pod mounts has no key {key[1]}: add it, or name another key"
    if reason in ("FailedMount", "FailedAttachVolume"):
        return "VolumeMount", f"a volume can't be mounted: {redact(message)[:600]}"
    return reason, redact(message)[:600]


def refusal_of(ended: Mapping[str, Any]) -> tuple[str, str] | None:
    """Reason and message of a program of ours that refused to go on; None for any other end."""
    if ended.get("exitCode") != REFUSED_EXIT_CODE:
        return None
    try:
        said = json.loads(ended.get("message", "").strip().splitlines()[-1])
        reason, message = str(said["reason"]), str(said["message"])
    except (ValueError, KeyError, TypeError, IndexError):
        return "Refused", f"the server refused to serve: {last_lines(ended.get('message', ''))}"
    if re.fullmatch(r"[A-Z][A-Za-z0-9]{0,63}", reason) is None:
        reason = "Refused"
    return reason, redact(message)[:900]


def _judge_starting(
    pod: Mapping[str, Any], statuses: Mapping[str, Any], context: Context, now: datetime.datetime
) -> tuple[str, str, str]:
    server = statuses.get(SERVER_CONTAINER, {})
    download = statuses.get(DOWNLOAD_CONTAINER, {})
    if "running" in download.get("state", {}):
        hub = context.spec.model.source.hugging_face
        return "Starting", "Downloading", f"downloads {hub.repo if hub else 'the model'} into its claim"
    if (running := server.get("state", {}).get("running")) is not None:
        since = now - parse_time(running["startedAt"])
        again = _termination(server)
        if again is not None and server.get("restartCount", 0) > 0 and not server.get("started"):
            reason, why = _explain_end(SERVER_CONTAINER, again, context)
            return (
                "Starting",
                "Restarting",
                f"starts again after {server['restartCount']} restart(s). Last: {reason}: {why}",
            )
        if server.get("started"):
            return "Starting", "NotReady", "the server runs but its readiness probe does not succeed"
        return (
            "Starting",
            "LoadingModel",
            f"loads weights and warms up for {_minutes(since)} of at most {context.spec.startup.timeout}",
        )
    if pod.get("spec", {}).get("nodeName"):
        return "Starting", CREATING, "the node mounts volumes and pulls the image"
    return "Pending", "Pending", "waits for the scheduler"


def _progress(download: Download) -> str:
    # In whole percent: a finer text would be written to status all the time.
    if not download.total:
        return f"{download.done / 1e9:.0f} GB"
    return f"{100 * download.done // download.total} % of {download.total / 1e9:.3g} GB"


def _minutes(span: datetime.timedelta) -> str:
    # In whole minutes: a text that changed each second would be written each second.
    minutes = int(span.total_seconds() // 60)
    return f"{minutes} min" if minutes else "less than a minute"


def _termination(entry: Mapping[str, Any]) -> Mapping[str, Any] | None:
    ended = entry.get("state", {}).get("terminated") or entry.get("lastState", {}).get("terminated")
    return ended if isinstance(ended, Mapping) else None


def _startup_timed_out(ended: Mapping[str, Any], context: Context) -> bool:
    """Whether the kubelet ended the server since its startup probe did not succeed in time.

    The kubelet writes no such reason anywhere but in an event. What shows it: the server was ended by a signal, about
    when the budget was spent; how long it then took to end is bounded by the grace period.
    """
    budget = seconds(context.spec.startup.timeout)
    earliest, latest = budget - PROBE_PERIOD_SECONDS, budget + 2 * PROBE_PERIOD_SECONDS + grace_seconds(context)
    return ended.get("exitCode") in _ENDED_BY_KUBELET and earliest <= _ran_seconds(ended) <= latest


def _ran_seconds(ended: Mapping[str, Any]) -> float:
    if not ended.get("startedAt") or not ended.get("finishedAt"):
        return 0.0
    return (parse_time(ended["finishedAt"]) - parse_time(ended["startedAt"])).total_seconds()
