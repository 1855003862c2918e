"""The containers of the pod: the server, the exporter beside it, and the download before it."""

import math
from typing import Any

from glm5_operator.api.base import seconds

from .arguments import sglang_arguments
from .context import EXPORTER_PORT, HTTP_PORT_NAME, METRICS_PORT_NAME, Context
from .volumes import API_KEY_FILE, KERNEL_CACHE_DIRECTORY, RUN_DIRECTORY, hugging_face_directory, server_mounts

SERVER_CONTAINER = "server"
EXPORTER_CONTAINER = "exporter"
DOWNLOAD_CONTAINER = "download"

DOWNLOAD_DIRECTORY = "/models/cache"

# Time for kube-proxy and load balancers to stop sending new connections before SGLang starts to refuse them.
ENDPOINT_REMOVAL_SECONDS = 10

PROBE_PERIOD_SECONDS = 5

_RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
}

# Every compiler on the way to a kernel keeps its results below the kernel cache, so that one volume saves all.
_KERNEL_CACHE_ENVIRONMENT = {
    "XDG_CACHE_HOME": KERNEL_CACHE_DIRECTORY,
    "CUDA_CACHE_PATH": f"{KERNEL_CACHE_DIRECTORY}/cuda",
    "TRITON_CACHE_DIR": f"{KERNEL_CACHE_DIRECTORY}/triton",
    "TORCHINDUCTOR_CACHE_DIR": f"{KERNEL_CACHE_DIRECTORY}/inductor",
    "FLASHINFER_WORKSPACE_BASE": f"{KERNEL_CACHE_DIRECTORY}/flashinfer",
    "SGLANG_CACHE_DIR": f"{KERNEL_CACHE_DIRECTORY}/sglang",
}


def server_container(context: Context) -> dict[str, Any]:
    """SGLang, started by this project's launcher."""
    spec = context.spec
    resources: dict[str, Any] = {}
    gpus = {spec.gpus.resource_name: str(spec.gpus.count)}
    resources["limits"] = {key: str(value) for key, value in spec.server.resources.limits.items()} | gpus
    resources["requests"] = {key: str(value) for key, value in spec.server.resources.requests.items()} | gpus
    return {
        "name": SERVER_CONTAINER,
        "image": context.image,
        "imagePullPolicy": spec.server.image_pull_policy,
        "command": ["glm5-mla", "serve", "--"],
        "args": sglang_arguments(context),
        "env": _server_environment(context),
        "ports": [{"name": HTTP_PORT_NAME, "containerPort": spec.server.port, "protocol": "TCP"}],
        "resources": resources,
        "volumeMounts": server_mounts(context),
        "securityContext": _RESTRICTED,
        **_probes(context),
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(ENDPOINT_REMOVAL_SECONDS)]}}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _server_environment(context: Context) -> list[dict[str, Any]]:
    own = {"GLM5_KV_CAST": context.spec.attention.kv_cast, "GLM5_RUN_DIR": RUN_DIRECTORY}
    if context.spec.server.api_key_secret_ref is not None:
        own["GLM5_API_KEY_FILE"] = API_KEY_FILE
    given = [variable.model_dump(by_alias=True, exclude_none=True) for variable in context.spec.server.env]
    taken = {variable["name"] for variable in given}
    cache = {name: value for name, value in _KERNEL_CACHE_ENVIRONMENT.items() if name not in taken}
    return [{"name": name, "value": value} for name, value in (own | cache).items()] + given


def _probes(context: Context) -> dict[str, Any]:
    # /ready is 200 only after SGLang's own warm-up generation and 503 while it drains, and costs nothing. /health
    # generates a token and takes a second at least. Liveness only sees a process that no longer listens: a busy or
    # loading server must not be killed, and hangs are for SGLang's own watchdog.
    ready = {"path": "/ready", "port": HTTP_PORT_NAME}
    budget = seconds(context.spec.startup.timeout)
    return {
        "startupProbe": {
            "httpGet": ready,
            "periodSeconds": PROBE_PERIOD_SECONDS,
            "timeoutSeconds": 5,
            "failureThreshold": math.ceil(budget / PROBE_PERIOD_SECONDS),
        },
        "readinessProbe": {
            "httpGet": ready,
            "periodSeconds": PROBE_PERIOD_SECONDS,
            "timeoutSeconds": 5,
            "failureThreshold": 3,
        },
        "livenessProbe": {
            "tcpSocket": {"port": HTTP_PORT_NAME},
            "periodSeconds": 20,
            "timeoutSeconds": 10,
            "failureThreshold": 6,
        },
    }


def exporter_container(context: Context) -> dict[str, Any]:
    """The exporter as a native sidecar.

    Its trouble must not take serving down, and a pod is ready only while its sidecars run. So it has no probes, and its
    first process starts its server again by itself: the container ends only when its memory limit is reached.
    """
    return {
        "name": EXPORTER_CONTAINER,
        "image": context.image,
        "imagePullPolicy": context.spec.server.image_pull_policy,
        "restartPolicy": "Always",
        "command": ["glm5-mla", "exporter"],
        "env": [
            {"name": "GLM5_RUN_DIR", "value": RUN_DIRECTORY},
            {"name": "GLM5_EXPORTER_PORT", "value": str(EXPORTER_PORT)},
            {"name": "GLM5_DEPLOYMENT", "value": context.name},
            {"name": "GLM5_EXPECTED_RANKS", "value": str(context.tensor_parallel_size)},
        ],
        "ports": [{"name": METRICS_PORT_NAME, "containerPort": EXPORTER_PORT, "protocol": "TCP"}],
        "resources": {
            "requests": {"cpu": "20m", "memory": "64Mi"},
            "limits": {"memory": "256Mi"},
        },
        "volumeMounts": [{"name": "run", "mountPath": RUN_DIRECTORY, "readOnly": True}],
        "securityContext": {**_RESTRICTED, "readOnlyRootFilesystem": True},
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def download_container(context: Context) -> dict[str, Any] | None:
    """Fetches a Hugging Face repository into the cache claim before the server starts; None for other sources."""
    hub = context.spec.model.source.hugging_face
    if hub is None:
        return None
    environment: list[dict[str, Any]] = [
        {"name": "HF_ENDPOINT", "value": hub.endpoint},
        {"name": "HF_HOME", "value": f"{DOWNLOAD_DIRECTORY}/.hub"},
        {"name": "HF_HUB_OFFLINE", "value": "0"},
        {"name": "HF_HUB_DISABLE_PROGRESS_BARS", "value": "1"},
        {"name": "HF_HUB_DISABLE_TELEMETRY", "value": "1"},
        {"name": "GLM5_RUN_DIR", "value": RUN_DIRECTORY},
    ]
    if hub.token_secret_ref is not None:
        reference = {"name": hub.token_secret_ref.name, "key": hub.token_secret_ref.key}
        environment.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}})
    target = f"{DOWNLOAD_DIRECTORY}/{hugging_face_directory(hub.repo, hub.revision)}"
    return {
        "name": DOWNLOAD_CONTAINER,
        "image": context.image,
        "imagePullPolicy": context.spec.server.image_pull_policy,
        "command": ["glm5-mla", "download"],
        "args": ["--repo", hub.repo, "--revision", hub.revision, "--out", target],
        "env": environment,
        "resources": {"requests": {"cpu": "500m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "volumeMounts": [
            {"name": "model", "mountPath": DOWNLOAD_DIRECTORY},
            {"name": "run", "mountPath": RUN_DIRECTORY},
        ],
        "securityContext": {**_RESTRICTED, "readOnlyRootFilesystem": True},
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
