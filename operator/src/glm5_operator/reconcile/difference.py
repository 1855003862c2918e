"""Whether the server's copy of a child still says what we say, and whether our own say has changed."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from glm5_operator.api.names import SPEC_HASH_ANNOTATION

# Keys by which Kubernetes tells list items apart, in the order in which they are tried.
_ITEM_KEYS = ("name", "mountPath", "containerPort", "port", "type", "uid", "key", "topologyKey")


def with_hash(manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest with a digest of itself as an annotation.

    A field that we no longer send leaves no trace in what we do send: the digest shows that we changed.
    """
    metadata = manifest["metadata"]
    annotations = {**metadata.get("annotations", {}), SPEC_HASH_ANNOTATION: digest_of(manifest)}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def digest_of(value: Any) -> str:
    """A short digest of a JSON value, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def spec_hash(child: Mapping[str, Any]) -> str:
    """The digest that a child carries, or an empty text."""
    return str((child.get("metadata", {}).get("annotations") or {}).get(SPEC_HASH_ANNOTATION, ""))


def projection(live: Any, wanted: Any) -> Any:
    """The part of `live` that `wanted` speaks of: same mapping keys, list items matched by their keys."""
    if isinstance(wanted, Mapping) and isinstance(live, Mapping):
        return {key: projection(live[key], value) for key, value in wanted.items() if key in live}
    if _is_list(wanted) and _is_list(live):
        return _project_list(live, wanted)
    return live


def agrees(live: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether the server's copy holds everything that we want, whatever else it holds."""
    return bool(projection(live, wanted) == wanted)


def _project_list(live: Sequence[Any], wanted: Sequence[Any]) -> list[Any]:
    key = next((key for key in _ITEM_KEYS if _keyed(wanted, key) and _keyed(live, key)), None)
    if key is None:
        if len(live) != len(wanted):
            return list(live)
        return [projection(a, b) for a, b in zip(live, wanted, strict=True)]
    by_key = {item[key]: item for item in live}
    return [projection(by_key[item[key]], item) for item in wanted if item[key] in by_key]


def _keyed(items: Sequence[Any], key: str) -> bool:
    values = [item.get(key) if isinstance(item, Mapping) else None for item in items]
    return bool(items) and None not in values and len(set(map(str, values))) == len(values)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)
