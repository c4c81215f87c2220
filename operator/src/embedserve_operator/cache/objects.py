"""Keeps what the watches have seen, by resource.

A resource is parsed once, when it is received, and kept as its view. The other objects are kept as JSON text: as
dictionaries or views, thousands of them would take five times the memory, and each one is read only in the passes over
its own resource. Of pods and Jobs the text has only what their views read. Children are kept whole, since they are
compared with what they should be.

The cache is fed by watch events and by the answers to our own writes, so that a pass right after a write
does not work with old objects. `forget_missing` repairs what an interrupted watch has missed: a deletion
during the gap.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from embedserve_operator.kube.kinds import API_KINDS, CHILD_KINDS, CLAIM, CLAIM_KINDS, JOB, POD, RESOURCE
from embedserve_operator.kube.objects import Received
from embedserve_operator.kube.references import ObjectKey
from embedserve_operator.kube.views.objects import Metadata, Object
from embedserve_operator.kube.views.pods import Pod
from embedserve_operator.kube.views.resource import EmbeddingServiceObject
from embedserve_operator.kube.views.workloads import Deployment, Job, PersistentVolumeClaim
from embedserve_operator.manifests.metadata import CLAIM_LABEL, JOB_NAME, SERVICE_LABEL, hash_claim_name
from embedserve_operator.observe.resource import read_claim_name
from embedserve_operator.observe.state import VolumeObjects
from embedserve_operator.observe.workloads import read_upgrade_phase
from embedserve_operator.state.upgrades import UpgradePhase

Generations: TypeAlias = tuple[tuple[str, int], ...]
"""UIDs of the resources that are known under one name, each with the generation of its spec."""
KINDS = (RESOURCE, *CHILD_KINDS, *CLAIM_KINDS, POD)


class ObjectCache:
    """The cache of objects by kind and by the resource that they belong to; those of a claim belong to the claim."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[ObjectKey, dict[str, _CachedObject]]] = {
            kind: defaultdict(dict) for kind in KINDS
        }
        self._upgrades: dict[str, tuple[ObjectKey, UpgradePhase]] = {}
        """The Deployments that an upgrade has not finished with, by UID."""

    def put(self, kind: str, received: Received) -> ObjectKey:
        """Remember an object unless a newer version of it is known; return the key of the resource that it
        belongs to.
        """
        metadata = Object.parse(received).metadata
        key = _build_index_key(kind, metadata)
        cached = self._objects[kind][key].get(metadata.uid)
        if cached is None or not _is_older_version(metadata.resource_version, cached.version):
            self._objects[kind][key][metadata.uid] = _build_cached_object(kind, received, metadata)
            if kind == "Deployment":
                self._note_upgrade(key, received)
        return key

    def _note_upgrade(self, key: ObjectKey, received: Received) -> None:
        deployment = Deployment.parse(received)
        phase = read_upgrade_phase(deployment)
        if phase:
            self._upgrades[deployment.metadata.uid] = (key, phase)
        else:
            self._upgrades.pop(deployment.metadata.uid, None)

    def list_upgrades(self) -> dict[ObjectKey, UpgradePhase]:
        """Return the resources that an upgrade of the operator has not finished with, each with its phase."""
        upgrades: dict[ObjectKey, UpgradePhase] = {}
        for key, phase in self._upgrades.values():
            upgrades[key] = "Failed" if "Failed" in (phase, upgrades.get(key)) else phase
        return upgrades

    def has_seen(self, kind: str, received: Received) -> bool:
        """Return whether this version of an object is known, or a newer one."""
        metadata = Object.parse(received).metadata
        cached = self._objects[kind].get(_build_index_key(kind, metadata), {}).get(metadata.uid)
        return cached is not None and not _is_older_version(cached.version, metadata.resource_version)

    def drop(self, kind: str, received: Received) -> ObjectKey:
        """Forget an object; return the key of the resource that it belonged to."""
        metadata = Object.parse(received).metadata
        key = _build_index_key(kind, metadata)
        self._forget(kind, key, metadata.uid)
        return key

    def drop_uid(self, kind: str, uid: str) -> None:
        """Forget an object of which only the UID is known."""
        for key in [key for key, objects_by_uid in self._objects[kind].items() if uid in objects_by_uid]:
            self._forget(kind, key, uid)

    def forget_missing(
        self, kind: str, existing: frozenset[str], known_before: frozenset[str]
    ) -> list[ObjectKey]:
        """Forget the objects that were known before a list was requested but are not in it; return the keys of
        their resources.
        """
        missing = [
            (key, uid)
            for key, objects_by_uid in self._objects[kind].items()
            for uid in objects_by_uid
            if uid in known_before and uid not in existing
        ]
        for key, uid in missing:
            self._forget(kind, key, uid)
        return [key for key, _ in missing]

    def list_uids(self, kind: str) -> frozenset[str]:
        """Return the UIDs of all known objects of a kind."""
        return frozenset(uid for objects_by_uid in self._objects[kind].values() for uid in objects_by_uid)

    def is_lagging(self, kind: str, listed: Mapping[str, str], existing: Mapping[str, str]) -> bool:
        """Return whether an object that was listed a while ago, and still exists, is unknown or known only in
        an older version: its watch is dead.
        """
        versions = {
            uid: cached
            for objects_by_uid in self._objects[kind].values()
            for uid, cached in objects_by_uid.items()
        }
        return any(
            uid not in versions or _is_older_version(versions[uid].version, version)
            for uid, version in listed.items()
            if uid in existing
        )

    def list_keys(self) -> list[ObjectKey]:
        """Return the keys of all resources."""
        return list(self._objects[RESOURCE])

    def list_generations(self) -> dict[ObjectKey, Generations]:
        """Return which specs are known of each resource; equal values stand for equal specs."""
        return {
            key: tuple((uid, cached.generation) for uid, cached in objects_by_uid.items())
            for key, objects_by_uid in self._objects[RESOURCE].items()
        }

    def get_resource(self, key: ObjectKey) -> EmbeddingServiceObject | None:
        """Return the user's resource; the youngest one if two are known under the same name."""
        cached = self._find_cached_resource(key)
        return None if cached is None else cached.view

    def _find_cached_resource(self, key: ObjectKey) -> _CachedResource | None:
        resources = [cached.resource for cached in self._objects[RESOURCE].get(key, {}).values()]
        return max(
            (resource for resource in resources if resource is not None),
            key=lambda resource: resource.view.metadata.creation_timestamp,
            default=None,
        )

    def list_children(self, key: ObjectKey) -> Iterable[Received]:
        """Return the child objects that carry the name of a resource, and the claim that the resource uses, each
        as it was received.
        """
        children = [content for kind in CHILD_KINDS for content in self._read(kind, key)]
        claim_key = self._find_claim_key(key)
        claims = [] if claim_key is None else self._read(CLAIM, claim_key)
        return [json.loads(content) for content in (*children, *claims)]

    def get_volume_objects(self, key: ObjectKey) -> VolumeObjects:
        """Return the objects around the claim that a resource uses; without a claim, its own Jobs."""
        claim_key = self._find_claim_key(key)
        if claim_key is None:
            own = _build_own_jobs_key(key)
            return VolumeObjects(
                jobs=[Job.parse_json(content) for content in self._read(JOB, own)], pods=self.list_pods(own)
            )
        return VolumeObjects(
            jobs=[Job.parse_json(content) for content in self._read(JOB, claim_key)],
            pods=self.list_pods(claim_key),
            claims=[PersistentVolumeClaim.parse_json(content) for content in self._read(CLAIM, claim_key)],
        )

    def _find_claim_key(self, key: ObjectKey) -> ObjectKey | None:
        """Return the key of the objects around the claim that a resource uses."""
        cached = self._find_cached_resource(key)
        return None if cached is None else cached.claim_key

    def find_concerned(self, kind: str, received: Received) -> list[ObjectKey]:
        """Return the keys of the resources that an object may concern."""
        index_key = _build_index_key(kind, Object.parse(received).metadata)
        if index_key.name.startswith(_OWN_JOBS_PREFIX):
            return [ObjectKey(index_key.namespace, index_key.name.removeprefix(_OWN_JOBS_PREFIX))]
        if not index_key.name.startswith(_CLAIM_PREFIX):
            return [index_key]
        return [
            key
            for key, resources in self._objects[RESOURCE].items()
            if key.namespace == index_key.namespace
            and any(
                cached.resource and cached.resource.claim_key == index_key for cached in resources.values()
            )
        ]

    def list_pods(self, key: ObjectKey) -> list[Pod]:
        """Return the pods that carry the name of a resource."""
        return [Pod.parse_json(content) for content in self._read(POD, key)]

    def _read(self, kind: str, key: ObjectKey) -> list[bytes]:
        return [cached.content for cached in self._objects[kind].get(key, {}).values()]

    def _forget(self, kind: str, key: ObjectKey, uid: str) -> None:
        objects_by_uid = self._objects[kind].get(key, {})
        objects_by_uid.pop(uid, None)
        self._upgrades.pop(uid, None)
        if not objects_by_uid:
            self._objects[kind].pop(key, None)


@dataclass(frozen=True, slots=True)
class _CachedResource:
    """A resource with the key of the objects around the claim that it uses."""

    view: EmbeddingServiceObject
    claim_key: ObjectKey | None


@dataclass(frozen=True, slots=True)
class _CachedObject:
    version: str
    generation: int
    content: bytes = b""
    """The object as JSON; empty for a resource."""
    resource: _CachedResource | None = None


def _build_cached_object(kind: str, received: Received, metadata: Metadata) -> _CachedObject:
    """Return an object in the form that is cached."""
    version, generation = metadata.resource_version, metadata.generation
    if kind == RESOURCE:
        resource = EmbeddingServiceObject.parse(received)
        cached = _CachedResource(resource, _read_claim_key(resource))
        return _CachedObject(version, generation, resource=cached)
    view = _VIEWS.get(kind)
    content = view.parse(received).as_json() if view is not None else _dump_whole(kind, received)
    return _CachedObject(version, generation, content)


_VIEWS: Mapping[str, type[Object]] = {POD: Pod, JOB: Job}
"""The kinds of which only what is read is kept."""


def _dump_whole(kind: str, received: Received) -> bytes:
    """Return the whole object as JSON.

    Kind and API version are added, which items of a list lack. The managers of fields are dropped, often
    the larger half.
    """
    metadata = {name: value for name, value in received["metadata"].items() if name != "managedFields"}
    whole = {**received, "apiVersion": API_KINDS[kind].api_version, "kind": kind, "metadata": metadata}
    return json.dumps(whole, separators=(",", ":")).encode()


def _read_claim_key(resource: EmbeddingServiceObject) -> ObjectKey | None:
    name = read_claim_name(resource)
    return None if name is None else _build_claim_key(resource.metadata.namespace, hash_claim_name(name))


_CLAIM_PREFIX, _OWN_JOBS_PREFIX = "claim:", "jobs:"
"""Prefixes of the names under which the objects around a claim are kept, and the Jobs of a resource without one with
their pods; no resource has such a name.
"""


def _build_index_key(kind: str, metadata: Metadata) -> ObjectKey:
    """Return the key under which an object is kept: that of the resource itself, of the one that its label
    names, or of the claim.
    """
    namespace, labels = metadata.namespace, metadata.labels
    if kind == RESOURCE:
        return metadata.key
    if kind == CLAIM:
        return _build_claim_key(namespace, hash_claim_name(metadata.name))
    if (kind == JOB or labels.get(JOB_NAME)) and CLAIM_LABEL not in labels:
        return _build_own_jobs_key(ObjectKey(namespace, labels.get(SERVICE_LABEL, "")))
    if kind == JOB or labels.get(JOB_NAME):
        return _build_claim_key(namespace, labels.get(CLAIM_LABEL, ""))
    return ObjectKey(namespace, labels.get(SERVICE_LABEL, ""))


def _build_own_jobs_key(key: ObjectKey) -> ObjectKey:
    return ObjectKey(key.namespace, _OWN_JOBS_PREFIX + key.name)


def _build_claim_key(namespace: str, claim_hash: str) -> ObjectKey:
    return ObjectKey(namespace, _CLAIM_PREFIX + claim_hash)


def _is_older_version(version: str, other_version: str) -> bool:
    """Return whether the first of two resource versions of one object is the older one."""
    return version.isdigit() and other_version.isdigit() and int(version) < int(other_version)
