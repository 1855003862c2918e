"""The Deployment: one pod a copy of the model."""

from typing import Any

from glm5_operator.api.base import seconds

from .containers import (
    ENDPOINT_REMOVAL_SECONDS,
    SERVER_CONTAINER,
    download_container,
    exporter_container,
    server_container,
)
from .context import Context
from .volumes import volumes

# Any user but root. The group owns the pod's own volumes, so that server and exporter share files.
_USER = 65532

# Scheduling, image pull and volume attach come before the startup budget begins to run.
_PULL_SECONDS = 1800


def grace_seconds(context: Context) -> int:
    """Time a pod has from its deletion until it is killed."""
    return seconds(context.spec.drain.grace_period) + ENDPOINT_REMOVAL_SECONDS


def progress_deadline_seconds(context: Context) -> int:
    """After this long without progress Kubernetes calls a rollout stuck: above all that may rightly take time.

    Without surge the old pod first drains, then the new one pulls and starts.
    """
    return grace_seconds(context) + _PULL_SECONDS + seconds(context.spec.startup.timeout)


def build_deployment(context: Context, template: dict[str, Any]) -> dict[str, Any]:
    """The Deployment around a pod template.

    Its replicas are always sent: a child scaled by hand goes back to what the object says.
    """
    surge = context.spec.rollout.surge
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": context.metadata(),
        "spec": {
            "replicas": context.spec.replicas,
            "selector": {"matchLabels": context.selector()},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 1 if surge else 0, "maxUnavailable": 0 if surge else 1},
            },
            "revisionHistoryLimit": 3,
            "progressDeadlineSeconds": progress_deadline_seconds(context),
            "template": template,
        },
    }


def pod_template(context: Context) -> dict[str, Any]:
    """The pod, before the user's podTemplate is merged in."""
    spec = context.spec
    init_containers = [exporter_container(context)]
    if (download := download_container(context)) is not None:
        init_containers.append(download)
    pod: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_seconds(context),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            # A model of 700 GB must not be walked through at each start.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "initContainers": init_containers,
        "containers": [server_container(context)],
        "volumes": volumes(context),
        "tolerations": [{"key": spec.gpus.resource_name, "operator": "Exists", "effect": "NoSchedule"}],
        # For one replica too: a template that depended on replicas would restart serving pods when scaled.
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": context.selector()},
            }
        ],
    }
    if spec.server.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": secret.name} for secret in spec.server.image_pull_secrets]
    if spec.gpus.product:
        pod["nodeSelector"] = {"nvidia.com/gpu.product": spec.gpus.product}
    return {
        "metadata": {
            "labels": context.labels(),
            "annotations": {"kubectl.kubernetes.io/default-container": SERVER_CONTAINER},
        },
        "spec": pod,
    }
