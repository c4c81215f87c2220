"""This module keeps what the watches have seen, by resource.

Objects are kept as the text that they arrived as: as dictionaries, thousands of them would take five times
the memory, and each one is read only in the passes over its own resource.

The cache is fed by watch events and by the answers to our own writes, so that a pass right after a write
does not work with old objects. `forget_missing` repairs what an interrupted watch has missed: a deletion
during the gap.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from embedserve_operator.kube.kinds import API_KINDS, CHILD_KINDS, CLAIM, CLAIM_KINDS, JOB, POD, RESOURCE
from embedserve_operator.kube.objects import Received, dig, mappings, text
from embedserve_operator.kube.references import ObjectKey
from embedserve_operator.manifests.metadata import CLAIM_LABEL, JOB_NAME, SERVICE_LABEL, hash_claim_name
from embedserve_operator.observe.resource import read_claim_name, read_key
from embedserve_operator.observe.state import VolumeObjects

KINDS = (RESOURCE, *CHILD_KINDS, *CLAIM_KINDS, POD)


class ObjectCache:
    """Holds objects by kind and by the resource that they belong to; those around a claim are held by the
    claim.
    """

    def __init__(self) -> None:
        self._objects: dict[str, dict[ObjectKey, dict[str, _CachedObject]]] = {
            kind: defaultdict(dict) for kind in KINDS
        }

    def put(self, kind: str, received: Received) -> ObjectKey:
        """Remember an object unless a newer version of it is known; return the key of the resource that it
        belongs to.
        """
        key = _build_index_key(kind, received)
        uid = text(received, "metadata", "uid")
        known = self._objects[kind][key].get(uid)
        if known is None or not _is_older_version(_read_version(received), known.version):
            self._objects[kind][key][uid] = _trim(kind, received)
        return key

    def knows(self, kind: str, received: Received) -> bool:
        """Return whether this version of an object is known, or a newer one."""
        known = (
            self._objects[kind]
            .get(_build_index_key(kind, received), {})
            .get(text(received, "metadata", "uid"))
        )
        return known is not None and not _is_older_version(known.version, _read_version(received))

    def drop(self, kind: str, received: Received) -> ObjectKey:
        """Forget an object; return the key of the resource that it belonged to."""
        key = _build_index_key(kind, received)
        self._forget(kind, key, text(received, "metadata", "uid"))
        return key

    def drop_uid(self, kind: str, uid: str) -> None:
        """Forget an object of which only the UID is known."""
        for key in [key for key, found in self._objects[kind].items() if uid in found]:
            self._forget(kind, key, uid)

    def forget_missing(
        self, kind: str, existing: frozenset[str], known_before: frozenset[str]
    ) -> list[ObjectKey]:
        """Forget the objects that were known before a list was requested but are not in it; return the keys of
        their resources.
        """
        missing = [
            (key, uid)
            for key, found in self._objects[kind].items()
            for uid in found
            if uid in known_before and uid not in existing
        ]
        for key, uid in missing:
            self._forget(kind, key, uid)
        return [key for key, _ in missing]

    def list_uids(self, kind: str) -> frozenset[str]:
        """Return the UIDs of all known objects of a kind."""
        return frozenset(uid for found in self._objects[kind].values() for uid in found)

    def is_lagging(self, kind: str, listed: Mapping[str, str], existing: Mapping[str, str]) -> bool:
        """Return whether an object that was listed a while ago, and still exists, is unknown or known only in
        an older version: its watch is dead.
        """
        known = {uid: kept for found in self._objects[kind].values() for uid, kept in found.items()}
        return any(
            uid not in known or _is_older_version(known[uid].version, version)
            for uid, version in listed.items()
            if uid in existing
        )

    def list_keys(self) -> list[ObjectKey]:
        """Return the keys of all resources."""
        return list(self._objects[RESOURCE])

    def get_resource(self, key: ObjectKey) -> Received | None:
        """Return the user's resource; the youngest one if two are known under the same name."""
        found = self._read(RESOURCE, key)
        return max(found, key=lambda r: text(r, "metadata", "creationTimestamp"), default=None)

    def list_children(self, key: ObjectKey) -> Iterable[Received]:
        """Return the child objects that carry the name of a resource, and the claim that the resource uses."""
        found = [found for kind in CHILD_KINDS for found in self._read(kind, key)]
        return [*found, *self.get_volume_objects(key).claims]

    def get_volume_objects(self, key: ObjectKey) -> VolumeObjects:
        """Return the objects around the claim that a resource uses."""
        resource = self.get_resource(key)
        place = _read_claim_key(resource) if resource is not None else None
        if place is None:
            return VolumeObjects()
        jobs, pods, claims = (self._read(kind, place) for kind in (JOB, POD, CLAIM))
        return VolumeObjects(jobs, pods, claims)

    def find_concerned(self, kind: str, received: Received) -> list[ObjectKey]:
        """Return the keys of the resources that an object may concern."""
        place = _build_index_key(kind, received)
        if not place.name.startswith(_CLAIM_PREFIX):
            return [place]
        return [
            key
            for key, found in self._objects[RESOURCE].items()
            if key.namespace == place.namespace and any(kept.claim == place for kept in found.values())
        ]

    def list_pods(self, key: ObjectKey) -> Iterable[Received]:
        """Return the pods that carry the name of a resource."""
        return self._read(POD, key)

    def _read(self, kind: str, key: ObjectKey) -> list[Received]:
        return [json.loads(kept.content) for kept in self._objects[kind].get(key, {}).values()]

    def _forget(self, kind: str, key: ObjectKey, uid: str) -> None:
        found = self._objects[kind].get(key, {})
        found.pop(uid, None)
        if not found:
            self._objects[kind].pop(key, None)


@dataclass(frozen=True, slots=True)
class _CachedObject:
    version: str
    content: bytes
    """The object as JSON."""
    claim: ObjectKey | None = None
    """For a resource, the key of the objects around the claim that it uses."""


def _trim(kind: str, received: Received) -> _CachedObject:
    """Return the object in the form that is cached.

    Kind and API version are added, which items of a list lack. The managers of fields are dropped, often
    the larger half, and so is everything in the spec of a pod that nobody reads.
    """
    metadata = {name: value for name, value in received["metadata"].items() if name != "managedFields"}
    found = {**received, "apiVersion": API_KINDS[kind].api_version, "kind": kind, "metadata": metadata}
    if kind == POD:
        found["spec"] = _trim_pod_spec(dig(received, "spec"))
    content = json.dumps(found, separators=(",", ":")).encode()
    return _CachedObject(
        _read_version(received), content, _read_claim_key(received) if kind == RESOURCE else None
    )


def _read_claim_key(resource: Received) -> ObjectKey | None:
    name = read_claim_name(resource)
    return (
        None
        if name is None
        else _build_claim_key(text(resource, "metadata", "namespace"), hash_claim_name(name))
    )


def _trim_pod_spec(spec: Any) -> dict[str, Any]:
    containers = {
        group: [_trim_container(one) for one in mappings(spec, group)]
        for group in ("initContainers", "containers")
    }
    volumes = [one for one in mappings(spec, "volumes") if one.keys() & {"configMap", "image"}]
    return {"nodeName": text(spec, "nodeName"), "volumes": volumes, **containers}


def _trim_container(container: Received) -> dict[str, Any]:
    """Return the container with only those environment variables that come from a Secret, since messages about
    them name it.
    """
    secret = [one for one in mappings(container, "env") if dig(one, "valueFrom", "secretKeyRef") is not None]
    return {"name": container.get("name"), "resources": container.get("resources"), "env": secret}


def _read_version(received: Received) -> str:
    return text(received, "metadata", "resourceVersion")


_CLAIM_PREFIX = "claim:"
"""Prefix of the names under which the objects around a claim are kept; no resource has such a name."""


def _build_index_key(kind: str, received: Received) -> ObjectKey:
    """Return the key under which an object is kept: that of the resource itself, of the one that its label
    names, or of the claim.
    """
    namespace, labels = text(received, "metadata", "namespace"), dig(received, "metadata", "labels")
    if kind == RESOURCE:
        return read_key(received)
    if kind == CLAIM:
        return _build_claim_key(namespace, hash_claim_name(text(received, "metadata", "name")))
    if kind == JOB or text(labels, JOB_NAME):
        return _build_claim_key(namespace, text(labels, CLAIM_LABEL))
    return ObjectKey(namespace, text(labels, SERVICE_LABEL))


def _build_claim_key(namespace: str, mark: str) -> ObjectKey:
    return ObjectKey(namespace, _CLAIM_PREFIX + mark)


def _is_older_version(one: str, other: str) -> bool:
    """Return whether the first of two resource versions of one object is the older one."""
    return one.isdigit() and other.isdigit() and int(one) < int(other)
