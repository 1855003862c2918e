"""Kopf: watches of the object and its children, handed to the controller.

Only raw events are used. Kopf's create and update handlers keep a copy of each spec in an annotation, its timers and
daemons put a finalizer on each object, which an uninstalled operator would strand.
"""

import logging
from typing import Any

import kopf

from .api import names
from .controller import Controller
from .settings import Settings

WATCHED_CHILDREN = {
    "Deployment": ("apps", "v1", "deployments"),
    "ReplicaSet": ("apps", "v1", "replicasets"),
    "Service": ("", "v1", "services"),
    "Pod": ("", "v1", "pods"),
    "PodDisruptionBudget": ("policy", "v1", "poddisruptionbudgets"),
    "HorizontalPodAutoscaler": ("autoscaling", "v2", "horizontalpodautoscalers"),
    "PodMonitor": ("monitoring.coreos.com", "v1", "podmonitors"),
}

# An API server that is away for long must not end the process: attempts go on, a quarter of a minute apart.
_ERROR_BACKOFFS = (1, 1, 2, 3, 5, 8, 13, *[15] * 10_000)


class NoEssence(kopf.AnnotationsDiffBaseStorage):
    """Keeps Kopf from copying the whole of each object for handlers of changes, of which there are none here."""

    def build(self, **_: Any) -> dict[str, Any]:
        """Nothing."""
        return {}


def build_registry(controller: Controller) -> kopf.OperatorRegistry:
    """Handlers that feed the controller."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def login(**arguments: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**arguments) or kopf.login_with_kubeconfig(**arguments)

    @kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=registry)
    async def on_object(event: kopf.RawEvent, **_: Any) -> None:
        controller.seen(names.KIND, event["type"] or "ADDED", dict(event["object"]))

    for kind, (group, version, plural) in WATCHED_CHILDREN.items():
        _watch_child(registry, controller, kind, group, version, plural)
    return registry


def _watch_child(
    registry: kopf.OperatorRegistry, controller: Controller, kind: str, group: str, version: str, plural: str
) -> None:
    @kopf.on.event(group, version, plural, registry=registry, id=f"child-{plural}")
    async def on_child(event: kopf.RawEvent, **_: Any) -> None:
        controller.seen(kind, event["type"] or "ADDED", dict(event["object"]))


def build_settings(*, clusterwide: bool) -> kopf.OperatorSettings:
    """Kopf's settings."""
    settings = kopf.OperatorSettings()
    # Watching for new APIs and namespaces takes rights over the whole cluster.
    settings.scanning.disabled = not clusterwide
    settings.posting.enabled = False
    # Kopf keeps a worker with its queue for each object, child, pod and event it has seen lately: a tenth of the
    # operator's memory with 100 objects.
    settings.queueing.idle_timeout = 0.2
    settings.persistence.diffbase_storage = NoEssence()
    settings.networking.connect_timeout = 10
    settings.networking.request_timeout = 60
    settings.networking.error_backoffs = _ERROR_BACKOFFS
    settings.watching.connect_timeout = 10
    settings.watching.server_timeout = 5 * 60
    settings.watching.client_timeout = 6 * 60
    for group, version, plural in WATCHED_CHILDREN.values():
        settings.watching.label_selectors[group, version, plural] = names.DEPLOYMENT_LABEL
    return settings


async def watch(controller: Controller, settings: Settings) -> None:
    """Watches for ever. Returns or raises when a watch can't go on."""
    logging.getLogger("kopf").setLevel(logging.WARNING)
    await kopf.operator(
        registry=build_registry(controller),
        settings=build_settings(clusterwide=not settings.watch_namespaces),
        standalone=True,
        # Kopf would ask for the name of the process's user, and an unprivileged container's has none.
        identity=settings.identity,
        clusterwide=not settings.watch_namespaces,
        namespaces=settings.watch_namespaces,
    )
