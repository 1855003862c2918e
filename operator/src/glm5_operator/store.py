"""What the watches last told: objects, and their children by owner."""

import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from .api.names import DEPLOYMENT_LABEL, KIND

Object = dict[str, Any]
Key = tuple[str, str]

# What is kept of kinds of which only a part is read; None keeps all of it.
_KEPT_METADATA = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "labels",
    "annotations",
    "ownerReferences",
    "creationTimestamp",
    "deletionTimestamp",
)
_KEPT_SPEC: dict[str, tuple[str, ...]] = {"Pod": ("nodeName",), "ReplicaSet": ()}
# Answers to writes come within seconds of the word of a deletion that followed them: few deletions need remembering.
_REMEMBERED_DELETIONS = 2048
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass(frozen=True)
class _Copy:
    """One object as JSON text: a tenth of the memory of its dictionaries, and a reader can't change it."""

    uid: str
    version: int
    text: str

    def read(self) -> Object:
        return json.loads(self.text)  # type: ignore[no-any-return]


class Store:
    """Copies of GLM5Deployments and of their children, fed by watches and by answers to our own writes."""

    def __init__(self) -> None:
        self._objects: dict[Key, _Copy] = {}
        self._children: dict[Key, dict[tuple[str, str], _Copy]] = {}
        self._deleted: OrderedDict[str, int] = OrderedDict()

    def objects(self) -> list[Key]:
        """(namespace, name) of every object."""
        return list(self._objects)

    def get(self, key: Key) -> Object | None:
        """The object, or None."""
        found = self._objects.get(key)
        return found.read() if found is not None else None

    def children(self, key: Key, kind: str) -> list[Object]:
        """Children of this kind that carry the object's label."""
        return [copy.read() for (kind_of, _), copy in self._children.get(key, {}).items() if kind_of == kind]

    def child(self, key: Key, kind: str, name: str) -> Object | None:
        """One child by name, or None."""
        found = self._children.get(key, {}).get((kind, name))
        return found.read() if found is not None else None

    def put(self, kind: str, body: Object) -> Key | None:
        """Takes in an object unless this copy or a newer one is known, as after a write of our own, or its deletion.

        Returns the key of the object to look at again, if any.
        """
        key = _owner(kind, body)
        if key is None:
            return None
        uid, version = _identity(body)
        if 0 < version <= self._deleted.get(uid, 0):
            return None
        known = self._find(kind, key, body)
        # Whatever its uid: word of an object made anew may come before that of the old one's end, or instead of it.
        if known is not None and known.version >= version > 0:
            return None
        copy = _Copy(uid, version, _kept(kind, body))
        if kind == KIND:
            self._objects[key] = copy
        else:
            self._children.setdefault(key, {})[kind, body["metadata"]["name"]] = copy
        return key

    def remove(self, kind: str, body: Object) -> Key | None:
        """Drops an object. Returns the key of the object to look at again, if any."""
        key = _owner(kind, body)
        if key is None:
            return None
        uid, version = _identity(body)
        # By version, since what only lost its label is told as deleted, too, and may come back.
        self._remember_deletion(uid, version)
        known = self._find(kind, key, body)
        if known is not None and known.uid == uid:
            self._drop(kind, key, body["metadata"]["name"])
        return key

    def drop_unlisted(self, kind: str, namespace: str | None, uids: set[str], version: int) -> None:
        """Drops copies of a kind that a listing at this resourceVersion does not name: their deletion was missed."""
        for key, name, copy in self._copies(kind):
            if namespace in (None, key[0]) and copy.version <= version and copy.uid not in uids:
                self._remember_deletion(copy.uid, version)
                self._drop(kind, key, name)

    def _remember_deletion(self, uid: str, version: int) -> None:
        self._deleted[uid] = version
        self._deleted.move_to_end(uid)
        if len(self._deleted) > _REMEMBERED_DELETIONS:
            self._deleted.popitem(last=False)

    def _copies(self, kind: str) -> list[tuple[Key, str, _Copy]]:
        """All of a kind: the key of the object that each belongs to, its name, and the copy."""
        if kind == KIND:
            return [(key, key[1], copy) for key, copy in self._objects.items()]
        return [
            (key, name, copy)
            for key, copies in self._children.items()
            for (kind_of, name), copy in copies.items()
            if kind_of == kind
        ]

    def _drop(self, kind: str, key: Key, name: str) -> None:
        if kind == KIND:
            del self._objects[key]
            return
        del self._children[key][kind, name]
        if not self._children[key]:
            del self._children[key]

    def _find(self, kind: str, key: Key, body: Object) -> _Copy | None:
        if kind == KIND:
            return self._objects.get(key)
        return self._children.get(key, {}).get((kind, body["metadata"]["name"]))


def _owner(kind: str, body: Object) -> Key | None:
    metadata = body["metadata"]
    if kind == KIND:
        return metadata["namespace"], metadata["name"]
    name = (metadata.get("labels") or {}).get(DEPLOYMENT_LABEL)
    return (metadata["namespace"], name) if name else None


def _identity(body: Object) -> tuple[str, int]:
    """uid, and resourceVersion as a number; 0 where it is none."""
    version = str(body["metadata"].get("resourceVersion", ""))
    return str(body["metadata"].get("uid", "")), int(version) if version.isdigit() else 0


def _kept(kind: str, body: Object) -> str:
    """What is kept of an object, as JSON."""
    metadata = {name: value for name, value in body["metadata"].items() if name in _KEPT_METADATA}
    if _LAST_APPLIED in (metadata.get("annotations") or {}):
        metadata["annotations"] = {k: v for k, v in metadata["annotations"].items() if k != _LAST_APPLIED}
    kept = {**body, "metadata": metadata}
    if (fields := _KEPT_SPEC.get(kind)) is not None:
        kept["spec"] = {name: value for name, value in body.get("spec", {}).items() if name in fields}
    return json.dumps(kept, separators=(",", ":"))
