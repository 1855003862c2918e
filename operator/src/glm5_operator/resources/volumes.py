"""Volumes of the pod, and where they are mounted."""

from typing import Any

from .context import Context

MODEL_DIRECTORY = "/models/model"
RUN_DIRECTORY = "/run/glm5"
KERNEL_CACHE_DIRECTORY = "/var/cache/glm5"
API_KEY_DIRECTORY = "/etc/glm5/api-key"
API_KEY_FILE = f"{API_KEY_DIRECTORY}/key"

# Ranks' files of a few hundred KiB each.
_RUN_DIRECTORY_LIMIT = "64Mi"


def hugging_face_directory(repo: str, revision: str) -> str:
    """Directory inside the cache claim that holds one repository at one revision."""
    return f"{repo.replace('/', '--')}/{revision.replace('/', '--')}"


def volumes(context: Context) -> list[dict[str, Any]]:
    """The pod's volumes."""
    made: list[dict[str, Any]] = [
        {"name": "model", **_model_source(context)},
        {"name": "run", "emptyDir": {"medium": "Memory", "sizeLimit": _RUN_DIRECTORY_LIMIT}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(context.spec.shared_memory)}},
        {"name": "kernel-cache", **_kernel_cache_source(context)},
    ]
    if (key := context.spec.server.api_key_secret_ref) is not None:
        made.append(
            {"name": "api-key", "secret": {"secretName": key.name, "items": [{"key": key.key, "path": "key"}]}},
        )
    return made


def server_mounts(context: Context) -> list[dict[str, Any]]:
    """Mounts of the server's container."""
    model: dict[str, Any] = {"name": "model", "mountPath": MODEL_DIRECTORY, "readOnly": True}
    if (hub := context.spec.model.source.hugging_face) is not None:
        model["subPath"] = hugging_face_directory(hub.repo, hub.revision)
    mounts = [
        model,
        {"name": "run", "mountPath": RUN_DIRECTORY},
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "kernel-cache", "mountPath": KERNEL_CACHE_DIRECTORY},
    ]
    if context.spec.server.api_key_secret_ref is not None:
        mounts.append({"name": "api-key", "mountPath": API_KEY_DIRECTORY, "readOnly": True})
    return mounts


def _model_source(context: Context) -> dict[str, Any]:
    source = context.spec.model.source
    if source.persistent_volume_claim is not None:
        return {"persistentVolumeClaim": {"claimName": source.persistent_volume_claim.claim_name, "readOnly": True}}
    if source.host_path is not None:
        return {"hostPath": {"path": source.host_path.path, "type": "Directory"}}
    if source.image is not None:
        return {"image": {"reference": source.image.reference, "pullPolicy": source.image.pull_policy}}
    if source.hugging_face is not None:
        return {"persistentVolumeClaim": {"claimName": source.hugging_face.cache_claim_name}}
    raise ValueError("spec.model.source names no source")


def _kernel_cache_source(context: Context) -> dict[str, Any]:
    cache = context.spec.kernel_cache
    if cache.persistent_volume_claim is not None:
        return {"persistentVolumeClaim": {"claimName": cache.persistent_volume_claim.claim_name}}
    if cache.host_path is not None:
        return {"hostPath": {"path": cache.host_path.path, "type": "DirectoryOrCreate"}}
    return {"emptyDir": {"sizeLimit": str(cache.size_limit)}}
