"""Brings one object at a time to what it says: observe, plan, write, tell."""

import asyncio
import datetime
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from .api import flags
from .api.names import COMPONENT_LABEL, KIND
from .api.spec import GLM5DeploymentSpec
from .cluster import ApiError, Cluster
from .metrics import Metrics
from .reconcile import guard
from .reconcile.difference import digest_of, projection, spec_hash
from .reconcile.plan import CHILD_KINDS, Applied, Apply, Delete, foreign_controller, owned, plan, wanted_children
from .reconcile.pods import CREATING, parse_time, view_pods
from .reconcile.status import Observed, Problem, build_status, refused_status, transitions
from .resources.containers import DOWNLOAD_CONTAINER
from .resources.context import Context
from .resources.pod_template import MalformedError
from .settings import Settings
from .store import Store
from .work_queue import Key, WorkQueue

if TYPE_CHECKING:
    from .reconcile.decode import Reading

logger = logging.getLogger(__name__)

# How long an answer about the presence of the PodMonitor API is believed.
_API_CHECK_SECONDS = 60.0

# What a pod is doing may be told with its minutes, and a node may be found lost by the clock alone.
_CLOCK_SECONDS = 60.0

# After this long on a node without containers a pod's events are asked for.
_STUCK_SECONDS = 15.0
_CREATION_WARNINGS = ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox", "FailedMapVolume")

# Events of children come in swarms (a Deployment's, its ReplicaSet's, its pods'): one pass looks at all of a swarm.
_SETTLE_SECONDS = 0.3

_LISTED_KINDS = (KIND, *CHILD_KINDS, "ReplicaSet", "Pod")


class Controller:
    """The level-based loop: a pass looks at everything about one object, whatever event caused it."""

    def __init__(
        self,
        cluster: Cluster,
        settings: Settings,
        metrics: Metrics,
        clock: Callable[[], datetime.datetime],
    ) -> None:
        self.store = Store()
        self.queue = WorkQueue(metrics.queue_depth.set, metrics.queue_seconds.observe)
        self.readings: dict[Key, dict[str, Reading | None]] = {}
        """Decode figures by object and pod name, as the reader last saw them."""
        self.may_act: Callable[[], bool] = lambda: True
        """Whether this process may write at this moment."""
        self._cluster = cluster
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._applied: dict[Key, dict[str, Applied]] = {}
        self._pod_monitor_api = (False, -_API_CHECK_SECONDS)

    def answering_pods(self) -> dict[Key, dict[str, str]]:
        """Addresses by pod name of the pods whose exporter can be asked, by object."""
        found = {}
        for key in self.store.objects():
            pods = {pod["metadata"]["name"]: pod["status"]["podIP"] for pod in self._pods(key) if _answers(pod)}
            if pods or self.readings.get(key):
                found[key] = pods
        return found

    def seen(self, kind: str, event: str, body: dict[str, Any]) -> None:
        """Takes in a watch event (ADDED, MODIFIED, DELETED, or none for the first listing)."""
        key = self.store.remove(kind, body) if event == "DELETED" else self.store.put(kind, body)
        if key is None:
            return
        if kind == KIND:
            self.queue.add(key, urgent=True)
        else:
            self.queue.add_after(key, _SETTLE_SECONDS)

    async def sweep(self) -> None:
        """Looks at every object anew, and drops what is gone without a word.

        A watch that broke off for longer than the API server remembers begins with a listing anew: what was deleted
        meanwhile is not in it, and no event tells.
        """
        before = self.store.objects()
        for kind in _LISTED_KINDS:
            for namespace in self._settings.watch_namespaces or (None,):
                try:
                    self.store.drop_unlisted(kind, namespace, *await self._cluster.listed(kind, namespace))
                except ApiError as error:
                    if error.code not in (403, 404):  # no right, or no such API: neither is watched
                        logger.warning("not swept: %s", error)
        for key in before:
            self.queue.add(key)

    async def handle(self, key: Key) -> bool:
        """One pass over one object. Returns whether it needs no retry."""
        if not self.may_act():
            return False
        started = time.perf_counter()
        result = "error"
        try:
            result = await self._reconcile(key)
        except ApiError as error:
            logger.warning("pass over %s/%s failed: %s", *key, error)
        except Exception:
            logger.exception("pass over %s/%s failed", *key)
        self._metrics.reconciles.labels(result=result).inc()
        self._metrics.reconcile_seconds.observe(time.perf_counter() - started)
        return result != "error"

    def context(self, body: Mapping[str, Any]) -> Context:
        """What the builders need. Raises ValidationError where the spec can't be read."""
        metadata = body["metadata"]
        spec = GLM5DeploymentSpec.model_validate(body.get("spec", {}))
        return Context(metadata["name"], metadata["namespace"], metadata["uid"], spec, self._settings)

    async def _reconcile(self, key: Key) -> str:
        body = self.store.get(key)
        if body is None or body["metadata"].get("deletionTimestamp"):
            self._forget(key)
            return "unchanged"
        problem = None
        try:
            context = self.context(body)
            if (refused := guard.refusal(context.spec, self._settings)) is not None:
                problem = Problem("NotAllowed", refused)
            elif (refused := flags.refusal(context.spec.server.extra_args)) is not None:
                problem = Problem("InvalidSpec", refused)
            wanted = wanted_children(context, pod_monitor_api=await self._has_pod_monitor())
        except ValidationError as error:
            problem = Problem("InvalidSpec", _first_error(error))
        except MalformedError as error:
            problem = Problem("InvalidPodTemplate", str(error))
        if problem is not None:
            pods = self._pods(key)
            status = refused_status(
                body.get("spec", {}),
                body["metadata"]["generation"],
                problem,
                body.get("status", {}),
                len(pods),
                sum(_ready(pod) for pod in pods),
                self._clock(),
            )
            await self._write_status(key, body, status)
            return "refused"
        is_new = not body.get("status")
        converged = await self._converge(key, context, body, wanted, CHILD_KINDS[:1])
        if is_new and converged.created and not converged.problems:
            # The rest waits its turn behind the Deployments of other new objects.
            self.queue.add(key)
            return "changed"
        try:
            converged += await self._converge(key, context, body, wanted, CHILD_KINDS[1:])
        finally:
            await self._tell_converged(key, body, wanted, converged)
        if is_new and converged.created and not converged.problems:
            # There is nothing to say before its pods exist, and others may wait for their children.
            self.queue.add_after(key, _SETTLE_SECONDS)
            return "changed"
        hash_wanted = spec_hash(wanted["Deployment"])
        status = self._judge(key, context, body, hash_wanted, converged.problems, await self._warnings(key))
        changed = await self._write_status(key, body, status) or converged.changed
        if any(pod["phase"] in ("Starting", "Draining") for pod in status["pods"]):
            creating = any(pod.get("reason") == CREATING for pod in status["pods"])
            self.queue.add_after(key, _STUCK_SECONDS if creating else _CLOCK_SECONDS)
        if converged.retry:
            return "error"
        return "changed" if changed else "unchanged"

    async def _converge(
        self,
        key: Key,
        context: Context,
        body: dict[str, Any],
        wanted: Mapping[str, dict[str, Any]],
        kinds: Sequence[str],
    ) -> "_Converged":
        """Writes the children of these kinds that differ from those wanted."""
        done = _Converged()
        wanted = {kind: wanted[kind] for kind in kinds if kind in wanted}
        live, forbidden = await self._live_children(key, wanted, kinds)
        done.problems += [_api_problem(error, kind) for kind, error in forbidden.items()]
        done.retry = bool(forbidden)
        wanted = {kind: manifest for kind, manifest in wanted.items() if kind not in forbidden}
        applied = self._applied.setdefault(key, {})
        for action in plan(wanted, live, applied, context.uid):
            try:
                if isinstance(action, Delete):
                    await self._cluster.delete(action.kind, context.namespace, action.name)
                    applied.pop(action.kind, None)
                else:
                    kind = action.manifest["kind"]
                    altered = await self._apply(action, live.get(kind), applied, body)
                    if action.restores and altered:
                        done.restored.append(kind)
                    elif kind not in live:
                        done.created.append(kind)
                done.changed = True
            except _TakenError as taken:
                done.problems.append(Problem("NameTaken", str(taken)))
                done.retry = True
            except ApiError as error:
                what = action.kind if isinstance(action, Delete) else action.manifest["kind"]
                done.problems.append(_api_problem(error, what))
                done.retry = True
        return done

    async def _tell_converged(
        self, key: Key, body: dict[str, Any], wanted: Mapping[str, Any], converged: "_Converged"
    ) -> None:
        """Events on children that were made or put back."""
        if converged.created:
            # Those of a new object are made in two passes.
            is_new = not body.get("status")
            made = [kind for kind in wanted if self.store.child(key, kind, key[1])] if is_new else converged.created
            await self._tell(body, "Normal", "Created", f"made: {', '.join(made)}")
        if converged.restored:
            message = f"changed or deleted by somebody else, and put back: {', '.join(converged.restored)}"
            await self._tell(body, "Normal", "Restored", message)

    async def _live_children(
        self, key: Key, wanted: Mapping[str, Any], kinds: Sequence[str]
    ) -> tuple[dict[str, dict[str, Any]], dict[str, ApiError]]:
        """Children of these kinds, from the watches, and refusals by kind where the operator may not even look.

        Children not seen by the watches are asked for: a stranger may hold the name.
        """
        seen = {kind: self.store.child(key, kind, key[1]) for kind in kinds}
        unseen = [kind for kind in wanted if seen[kind] is None]
        answers = await asyncio.gather(*(self._look(kind, key) for kind in unseen))
        forbidden = {}
        for kind, answer in zip(unseen, answers, strict=True):
            if isinstance(answer, ApiError):
                forbidden[kind] = answer
            else:
                seen[kind] = answer
        return {kind: child for kind, child in seen.items() if child is not None}, forbidden

    async def _look(self, kind: str, key: Key) -> dict[str, Any] | ApiError | None:
        try:
            return await self._cluster.get(kind, *key)
        except ApiError as error:
            if error.code != 403:
                raise
            return error

    async def _apply(
        self, action: Apply, current: dict[str, Any] | None, applied: dict[str, Applied], body: dict[str, Any]
    ) -> bool:
        """Sends a child. Returns whether that changed it. Raises _TakenError where it is somebody else's."""
        manifest, uid = action.manifest, body["metadata"]["uid"]
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        if current is not None and not owned(current, uid):
            holder = foreign_controller(current, uid)
            if holder == f"{KIND}/{name}":
                raise _TakenError(f"{kind} {name} of a former object of this name is still being deleted")
            held = f"belongs to {holder}" if holder else "was made by somebody else"
            raise _TakenError(f"{kind} {name} {held}: rename this object, or delete that {kind}")
        result = await self._cluster.apply(manifest)
        applied[kind] = Applied(spec_hash(manifest), digest_of(projection(result, manifest)))
        self.store.put(kind, result)
        return current is None or result["metadata"]["resourceVersion"] != current["metadata"]["resourceVersion"]

    async def _warnings(self, key: Key) -> dict[str, tuple[str, str]]:
        """What the kubelet last complained of, by name, for pods that have long been on a node without containers."""
        found = {}
        for pod in self._pods(key):
            if not _stuck(pod, self._clock()):
                continue
            events = await self._cluster.warnings(key[0], pod["metadata"]["uid"])
            told = [event for event in events if event.get("reason") in _CREATION_WARNINGS]
            if told:
                found[pod["metadata"]["name"]] = (told[-1]["reason"], str(told[-1].get("message", "")))
        return found

    def _judge(
        self,
        key: Key,
        context: Context,
        body: dict[str, Any],
        hash_wanted: str,
        problems: list[Problem],
        warnings: Mapping[str, tuple[str, str]],
    ) -> dict[str, Any]:
        now = self._clock()
        deployment = self.store.child(key, "Deployment", key[1])
        readings = self.readings.get(key, {})
        downloads = {name: reading.download for name, reading in readings.items() if reading and reading.download}
        observed = Observed(
            deployment=deployment,
            deployment_current=deployment is not None and spec_hash(deployment) == hash_wanted,
            pods=view_pods(self._pods(key), context, now, self._template_hash(key, deployment), downloads, warnings),
            readings=readings,
            problems=problems,
            autoscaler=self.store.child(key, "HorizontalPodAutoscaler", key[1]),
        )
        return build_status(context, body["metadata"]["generation"], observed, body.get("status", {}), now)

    def _pods(self, key: Key) -> list[dict[str, Any]]:
        return [
            pod for pod in self.store.children(key, "Pod") if pod["metadata"]["labels"].get(COMPONENT_LABEL) == "server"
        ]

    def _template_hash(self, key: Key, deployment: Mapping[str, Any] | None) -> str | None:
        """pod-template-hash of the ReplicaSet that the Deployment rolls out now."""
        if deployment is None:
            return None
        revision = (deployment["metadata"].get("annotations") or {}).get("deployment.kubernetes.io/revision")
        for candidate in self.store.children(key, "ReplicaSet"):
            annotations = candidate["metadata"].get("annotations") or {}
            if annotations.get("deployment.kubernetes.io/revision") == revision:
                return str(candidate["metadata"]["labels"].get("pod-template-hash", "")) or None
        return None

    async def _write_status(self, key: Key, body: dict[str, Any], status: dict[str, Any]) -> bool:
        self._metrics.tell(*key, status)
        previous = body.get("status", {})
        if status == previous:
            return False
        try:
            result = await self._cluster.apply_status(*key, status)
        except ApiError as error:
            if error.code == 404:
                return False
            raise
        self.store.put(KIND, result)
        if result["metadata"]["generation"] != body["metadata"]["generation"]:
            # The event of the newer spec may come after this answer, and would tell nothing new then.
            self.queue.add(key, urgent=True)
        for kind, reason, message in transitions(previous.get("conditions", []), status["conditions"]):
            await self._tell(body, kind, reason, message)
        return True

    async def _tell(self, body: dict[str, Any], kind: str, reason: str, message: str) -> None:
        try:
            await self._cluster.tell(body, kind, reason, message)
        except ApiError as error:
            logger.warning("event not recorded: %s", error)

    async def _has_pod_monitor(self) -> bool:
        present, checked = self._pod_monitor_api
        if time.monotonic() - checked > _API_CHECK_SECONDS:
            present = await self._cluster.has_api("monitoring.coreos.com/v1", "podmonitors")
            self._pod_monitor_api = (present, time.monotonic())
        return present

    def _forget(self, key: Key) -> None:
        self._metrics.forget(*key)
        self._applied.pop(key, None)
        self.readings.pop(key, None)
        self.queue.forget(key)


def _answers(pod: Mapping[str, Any]) -> bool:
    """Whether the pod's exporter has something to tell: the server is ready, or its model is being downloaded."""
    status = pod.get("status", {})
    if not status.get("podIP") or pod["metadata"].get("deletionTimestamp"):
        return False
    downloads = any(
        entry["name"] == DOWNLOAD_CONTAINER and "running" in entry.get("state", {})
        for entry in status.get("initContainerStatuses", [])
    )
    return _ready(pod) or downloads


def _ready(pod: Mapping[str, Any]) -> bool:
    """Whether the pod answers requests and is to stay."""
    conditions = pod.get("status", {}).get("conditions", [])
    ready = any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)
    return ready and not pod["metadata"].get("deletionTimestamp")


def _stuck(pod: Mapping[str, Any], now: datetime.datetime) -> bool:
    status = pod.get("status", {})
    if status.get("phase") != "Pending" or pod["metadata"].get("deletionTimestamp"):
        return False
    entries = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    if any("running" in entry.get("state", {}) or "terminated" in entry.get("state", {}) for entry in entries):
        return False
    scheduled = [c for c in status.get("conditions", []) if c["type"] == "PodScheduled" and c["status"] == "True"]
    return bool(scheduled) and (now - parse_time(scheduled[0]["lastTransitionTime"])).total_seconds() >= _STUCK_SECONDS


@dataclass
class _Converged:
    """What became of children in a pass."""

    changed: bool = False
    """Whether anything was written."""
    created: list[str] = field(default_factory=list)
    """Kinds that are new."""
    restored: list[str] = field(default_factory=list)
    """Kinds that somebody else had changed or deleted."""
    problems: list[Problem] = field(default_factory=list)
    """What stood in the way of a write."""
    retry: bool = False
    """Whether to come back though no event calls."""

    def __add__(self, other: "_Converged") -> "_Converged":
        return _Converged(
            self.changed or other.changed,
            self.created + other.created,
            self.restored + other.restored,
            self.problems + other.problems,
            self.retry or other.retry,
        )


class _TakenError(Exception):
    """Another object holds a child's name."""


def _api_problem(error: ApiError, kind: str) -> Problem:
    if error.code == 403:
        if "exceeded quota" in error.message:
            return Problem("QuotaExceeded", error.message)
        return Problem("Forbidden", f"the operator lacks a right over {kind}: {error.message}")
    if error.code in (400, 422):
        remedy = ""
        if "field is immutable" in error.message:
            remedy = f". Delete that {kind}, and it is made anew; until then what it runs stays as it is"
        return Problem("ChildRefused", f"the API server refuses the {kind}: {error.message}{remedy}")
    if error.code == 404:
        return Problem("ApiMissing", f"the cluster has no API for {kind}, or the namespace is going: {error.message}")
    return Problem("ApiError", f"{kind} could not be written and is tried again: {error.message}")


def _first_error(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in ("spec", *first["loc"]))
    return f"{where}: {first['msg']}. The CRD may be older or newer than the operator: apply the one that came with it."
