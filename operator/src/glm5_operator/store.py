"""What the watches last told: objects, and their children by owner."""

from typing import Any

from .api.names import DEPLOYMENT_LABEL, KIND

Object = dict[str, Any]
Key = tuple[str, str]

# Fields that nothing here reads and that make up most of an object's size.
_DROPPED_METADATA = ("managedFields",)


class Store:
    """Copies of GLM5Deployments and of their children, fed by watches and by answers to our own writes."""

    def __init__(self) -> None:
        self._objects: dict[Key, Object] = {}
        self._children: dict[Key, dict[tuple[str, str], Object]] = {}

    def objects(self) -> list[Key]:
        """(namespace, name) of every object."""
        return list(self._objects)

    def get(self, key: Key) -> Object | None:
        """The object, or None."""
        return self._objects.get(key)

    def children(self, key: Key, kind: str) -> list[Object]:
        """Children of this kind that carry the object's label."""
        return [child for (kind_of, _), child in self._children.get(key, {}).items() if kind_of == kind]

    def child(self, key: Key, kind: str, name: str) -> Object | None:
        """One child by name, or None."""
        return self._children.get(key, {}).get((kind, name))

    def put(self, kind: str, body: Object) -> Key | None:
        """Takes in an object unless a newer copy is known. Returns the key of the object to look at again, if any."""
        key = _owner(kind, body)
        if key is None:
            return None
        known = self._find(kind, key, body)
        if known is not None and _version(known) > _version(body) and _uid(known) == _uid(body):
            return None
        trimmed = _trim(body)
        if kind == KIND:
            self._objects[key] = trimmed
        else:
            self._children.setdefault(key, {})[kind, body["metadata"]["name"]] = trimmed
        return key

    def remove(self, kind: str, body: Object) -> Key | None:
        """Drops an object. Returns the key of the object to look at again, if any."""
        key = _owner(kind, body)
        if key is None:
            return None
        known = self._find(kind, key, body)
        if known is not None and _uid(known) != _uid(body):
            return key
        if kind == KIND:
            self._objects.pop(key, None)
        elif key in self._children:
            self._children[key].pop((kind, body["metadata"]["name"]), None)
            if not self._children[key]:
                del self._children[key]
        return key

    def _find(self, kind: str, key: Key, body: Object) -> Object | None:
        if kind == KIND:
            return self._objects.get(key)
        return self.child(key, kind, body["metadata"]["name"])


def _owner(kind: str, body: Object) -> Key | None:
    metadata = body["metadata"]
    if kind == KIND:
        return metadata["namespace"], metadata["name"]
    name = (metadata.get("labels") or {}).get(DEPLOYMENT_LABEL)
    return (metadata["namespace"], name) if name else None


def _uid(body: Object) -> str:
    return str(body["metadata"].get("uid", ""))


def _version(body: Object) -> int:
    try:
        return int(body["metadata"].get("resourceVersion", 0))
    except ValueError:
        return 0


def _trim(body: Object) -> Object:
    metadata = {key: value for key, value in body["metadata"].items() if key not in _DROPPED_METADATA}
    return {**body, "metadata": metadata}
