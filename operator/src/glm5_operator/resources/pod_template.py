"""Merges a user's podTemplate into the generated pod template, list by list, as the API's own OpenAPI keys them."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from .containers import EXPORTER_CONTAINER, SERVER_CONTAINER
from .context import Context
from .deployment import pod_template
from .volumes import API_KEY_DIRECTORY, MODEL_DIRECTORY, RUN_DIRECTORY

Template = dict[str, Any]

# x-kubernetes-list-map-keys (or patch-merge-key) of the lists in a pod template, by the name of the field, which is
# unambiguous there. Other lists are atomic in the API: the user's replaces ours.
LIST_KEYS: dict[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "volumes": ("name",),
    "imagePullSecrets": ("name",),
    "env": ("name",),
    "ports": ("containerPort", "protocol"),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "resourceClaims": ("name",),
    "schedulingGates": ("name",),
    "claims": ("name",),
}

# Atomic in the API too, but a user who adds one does not mean to lose the GPUs'.
_APPENDED = "tolerations"

_ITEM_DEFAULTS = {"protocol": "TCP"}

# Fields of our containers without which the product would not work.
_KEPT_CONTAINER_FIELDS = {
    SERVER_CONTAINER: (
        "command",
        "args",
        "startupProbe",
        "readinessProbe",
        "livenessProbe",
        "terminationMessagePolicy",
    ),
    EXPORTER_CONTAINER: ("command", "args", "restartPolicy", "terminationMessagePolicy"),
}
_KEPT_MOUNTS = (MODEL_DIRECTORY, RUN_DIRECTORY, API_KEY_DIRECTORY, "/dev/shm")
_KEPT_VOLUMES = ("model", "run", "api-key")


class MalformedError(ValueError):
    """A podTemplate has not the form of a pod template: the API server lets any object pass there."""


def merged_pod_template(context: Context) -> tuple[Template, list[str]]:
    """The pod template with the user's wishes, and the fields that were kept as generated against them.

    Raises MalformedError for a list or section that is null where the server needs it, or of another type.
    """
    generated = pod_template(context)
    wished = context.spec.pod_template
    if not wished:
        return generated, []
    try:
        return _merged(generated, wished)
    except (AttributeError, KeyError, TypeError) as error:
        raise MalformedError(
            "spec.podTemplate can't be merged into the pod: a section or list of it (metadata.labels, spec, "
            "containers, initContainers, volumes, or a container's ports, env or volumeMounts) is null or of another "
            "type. Compare it with kubectl explain deployment.spec.template"
        ) from error


def _merged(generated: Template, wished: Mapping[str, Any]) -> tuple[Template, list[str]]:
    allowed = {"metadata": _only(wished.get("metadata"), ("labels", "annotations")), "spec": wished.get("spec") or {}}
    merged = _merge(generated, allowed)
    kept = [f"spec.podTemplate.{field}" for field in wished if field not in ("metadata", "spec")]
    for key in generated["metadata"]["labels"]:
        _keep(merged["metadata"]["labels"], generated["metadata"]["labels"], key, "metadata.labels", kept)
    _keep_containers(merged["spec"], generated["spec"], kept)
    return merged, sorted(kept)


def _keep_containers(merged: Template, generated: Template, kept: list[str]) -> None:
    for kind in ("initContainers", "containers"):
        ours = {container["name"]: container for container in generated[kind]}
        for container in merged[kind]:
            name = container.get("name")
            where = f"spec.{kind}[{name}]"
            if (original := ours.get(name)) is None:
                continue
            for field in _KEPT_CONTAINER_FIELDS.get(name, ("command", "args")):
                _keep(container, original, field, where, kept)
            for field, keys in (("ports", ("containerPort",)), ("volumeMounts", ("mountPath",)), ("env", ("name",))):
                for item in original.get(field, []):
                    if field == "volumeMounts" and item["mountPath"] not in _KEPT_MOUNTS:
                        continue
                    if field == "env" and not item["name"].startswith("GLM5_"):
                        continue
                    _keep_item(container, field, item, keys, where, kept)
    for volume in generated["volumes"]:
        if volume["name"] in _KEPT_VOLUMES:
            _keep_item(merged, "volumes", volume, ("name",), "spec", kept)


def _keep(merged: Template, original: Template, field: str, where: str, kept: list[str]) -> None:
    if merged.get(field) == original.get(field):
        return
    kept.append(f"spec.podTemplate.{where}.{field}")
    if field in original:
        merged[field] = copy.deepcopy(original[field])
    else:
        del merged[field]


def _keep_item(holder: Template, field: str, item: Template, keys: Sequence[str], where: str, kept: list[str]) -> None:
    for index, candidate in enumerate(holder[field]):
        if all(candidate.get(key) == item[key] for key in keys) and candidate != item:
            kept.append(f"spec.podTemplate.{where}.{field}[{item[keys[0]]}]")
            holder[field][index] = copy.deepcopy(item)


def _merge(ours: Any, theirs: Any, field: str = "") -> Any:
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        merged = {key: copy.deepcopy(value) for key, value in ours.items()}
        for key, value in theirs.items():
            if value is None:
                merged.pop(key, None)
            else:
                merged[key] = _merge(ours[key], value, key) if key in ours else copy.deepcopy(value)
        return merged
    if isinstance(ours, list) and isinstance(theirs, list):
        if field == _APPENDED:
            return [*copy.deepcopy(ours), *(item for item in copy.deepcopy(theirs) if item not in ours)]
        if field in LIST_KEYS:
            return _merge_list(ours, theirs, LIST_KEYS[field])
    return copy.deepcopy(theirs)


def _merge_list(ours: list[Any], theirs: list[Any], keys: tuple[str, ...]) -> list[Any]:
    merged = [copy.deepcopy(item) for item in ours]
    places = {_identity(item, keys): index for index, item in enumerate(merged)}
    for item in theirs:
        place = places.get(_identity(item, keys))
        if place is None:
            merged.append(copy.deepcopy(item))
        else:
            merged[place] = _merge(merged[place], item)
    return merged


def _identity(item: Any, keys: tuple[str, ...]) -> tuple[Any, ...]:
    if not isinstance(item, Mapping):
        return (item,)
    return tuple(item.get(key, _ITEM_DEFAULTS.get(key)) for key in keys)


def _only(value: Any, keys: tuple[str, ...]) -> Template:
    return {key: value[key] for key in keys if key in value} if isinstance(value, Mapping) else {}
