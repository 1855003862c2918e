"""What an object may not ask for: whoever may create one must not gain the node."""

from collections.abc import Iterator
from typing import Any

from glm5_operator.api.spec import GLM5DeploymentSpec
from glm5_operator.settings import Settings

_HOST_NAMESPACES = ("hostNetwork", "hostPID", "hostIPC")
_CONTAINER_LISTS = ("containers", "initContainers", "ephemeralContainers")
_SELINUX_TYPES = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")


def refusal(spec: GLM5DeploymentSpec, settings: Settings) -> str | None:
    """Why this spec is not carried out, as a sentence with field and remedy; None where nothing stands against it."""
    if not settings.allow_host_path:
        for field in _host_paths(spec):
            return (
                f"{field} mounts a directory of the node, which this operator does not allow. Use a claim, or have the "
                "cluster's administrator install the chart with allowHostPath=true."
            )
    for field in _privileges(spec.pod_template or {}):
        return (
            f"{field} would give the pod rights over its node, which this operator never grants. Remove it; if you "
            "need it, create the Deployment yourself."
        )
    return None


def _host_paths(spec: GLM5DeploymentSpec) -> Iterator[str]:
    if spec.model.source.host_path is not None:
        yield "spec.model.source.hostPath"
    if spec.kernel_cache.host_path is not None:
        yield "spec.kernelCache.hostPath"
    for volume in _dicts(_pod(spec.pod_template or {}).get("volumes")):
        if "hostPath" in volume:
            yield f"spec.podTemplate.spec.volumes[{volume.get('name', '?')}].hostPath"


def _privileges(template: dict[str, Any]) -> Iterator[str]:
    pod = _pod(template)
    for field in _HOST_NAMESPACES:
        if pod.get(field):
            yield f"spec.podTemplate.spec.{field}"
    yield from _unconfined(pod.get("securityContext"), "spec.podTemplate.spec.securityContext")
    for kind in _CONTAINER_LISTS:
        for container in _dicts(pod.get(kind)):
            where = f"spec.podTemplate.spec.{kind}[{container.get('name', '?')}]"
            context = container.get("securityContext") or {}
            if not isinstance(context, dict):
                continue
            yield from _unconfined(context, f"{where}.securityContext")
            for field in ("privileged", "allowPrivilegeEscalation"):
                if context.get(field):
                    yield f"{where}.securityContext.{field}"
            if isinstance(context.get("capabilities"), dict) and context["capabilities"].get("add"):
                yield f"{where}.securityContext.capabilities.add"
            if context.get("procMount") not in (None, "Default"):
                yield f"{where}.securityContext.procMount"
            if any(port.get("hostPort") for port in _dicts(container.get("ports"))):
                yield f"{where}.ports.hostPort"


def _unconfined(context: Any, where: str) -> Iterator[str]:
    """What the pod security standard *baseline* forbids in the security context of a pod and of a container alike."""
    if not isinstance(context, dict):
        return
    for field in ("seccompProfile", "appArmorProfile"):
        profile = context.get(field)
        if isinstance(profile, dict) and profile.get("type") == "Unconfined":
            yield f"{where}.{field}"
    windows = context.get("windowsOptions")
    if isinstance(windows, dict) and windows.get("hostProcess"):
        yield f"{where}.windowsOptions.hostProcess"
    labels = context.get("seLinuxOptions")
    if isinstance(labels, dict) and (
        labels.get("user") or labels.get("role") or labels.get("type", "") not in _SELINUX_TYPES
    ):
        yield f"{where}.seLinuxOptions"


def _pod(template: dict[str, Any]) -> dict[str, Any]:
    pod = template.get("spec")
    return pod if isinstance(pod, dict) else {}


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
