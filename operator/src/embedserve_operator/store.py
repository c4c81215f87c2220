"""What the watches have seen, by resource.

Objects are kept as the text that they came as: as dictionaries, thousands of them take five times the room, and each is
read in the passes over its own resource only.

Fed by watch events and by the answers to our own writes, so that a pass right after a write does not work on
the past. `forget_missing` repairs what a watch that was cut has missed: a deletion during the gap.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from embedserve_operator.kinds import API_KINDS, CHILD_KINDS, CLAIM, CLAIM_KINDS, JOB, NODE, POD, RESOURCE
from embedserve_operator.nodes import ClusterFacts, NodeFacts
from embedserve_operator.observe import VolumeSeen, claim_name, key_of, read_node
from embedserve_operator.specs.metadata import CLAIM_LABEL, JOB_NAME, SERVICE_LABEL, claim_mark
from embedserve_operator.wire import Received, dig, mappings, text
from embedserve_operator.world import Key

KINDS = (RESOURCE, *CHILD_KINDS, *CLAIM_KINDS, POD)


class ClusterStore:
    """What is known of the cluster as a whole. Every method tells whether that changed anything: nodes report
    their health all the time, and none of it matters here."""

    def __init__(self, *, watches_nodes: bool) -> None:
        self._watches_nodes = watches_nodes
        self._nodes: dict[str, NodeFacts] = {}
        self._runtime_classes: set[str] = set()
        self._optional_kinds: frozenset[str] = frozenset()
        self._metrics_providers: tuple[str, ...] = ()

    def put(self, kind: str, received: Received) -> bool:
        """A node or RuntimeClass exists."""
        name = text(received, "metadata", "name")
        if kind != NODE:
            new = name not in self._runtime_classes
            self._runtime_classes.add(name)
            return new
        facts = read_node(received)
        changed = self._nodes.get(name) != facts
        self._nodes[name] = facts
        return changed

    def drop(self, kind: str, received: Received) -> bool:
        """A node or RuntimeClass is gone."""
        return self._forget(kind, text(received, "metadata", "name"))

    def keep_only(self, kind: str, names: frozenset[str]) -> bool:
        """Forget what is not among the names that exist."""
        known = set(self._nodes) if kind == NODE else set(self._runtime_classes)
        gone = known - names
        for name in gone:
            self._forget(kind, name)
        return bool(gone)

    def have_metrics_providers(self, providers: tuple[str, ...]) -> None:
        """Who answers the custom metrics API beside our adapter."""
        self._metrics_providers = providers

    def have_optional_kinds(self, there: frozenset[str]) -> None:
        """Which of the kinds that a cluster may lack can be made."""
        self._optional_kinds = there

    def facts(self) -> ClusterFacts:
        """The facts as frozen values."""
        return ClusterFacts(
            nodes=tuple(self._nodes[name] for name in sorted(self._nodes)) if self._watches_nodes else None,
            runtime_classes=frozenset(self._runtime_classes),
            optional_kinds=self._optional_kinds,
            metrics_providers=self._metrics_providers,
        )

    def _forget(self, kind: str, name: str) -> bool:
        if kind == NODE:
            return self._nodes.pop(name, None) is not None
        there = name in self._runtime_classes
        self._runtime_classes.discard(name)
        return there


class Store:
    """Objects by kind and by the resource that they belong to; what is around a claim, by the claim."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[Key, dict[str, _Kept]]] = {kind: defaultdict(dict) for kind in KINDS}

    def put(self, kind: str, received: Received) -> Key:
        """Remember an object unless a newer version of it is known; returns the resource that it belongs
        to."""
        key = _place(kind, received)
        uid = text(received, "metadata", "uid")
        known = self._objects[kind][key].get(uid)
        if known is None or not _is_older(_version(received), known.version):
            self._objects[kind][key][uid] = _kept(kind, received)
        return key

    def knows(self, kind: str, received: Received) -> bool:
        """Whether this version of an object is known, or a newer one."""
        known = self._objects[kind].get(_place(kind, received), {}).get(text(received, "metadata", "uid"))
        return known is not None and not _is_older(known.version, _version(received))

    def drop(self, kind: str, received: Received) -> Key:
        """Forget an object; returns the resource that it belonged to."""
        key = _place(kind, received)
        self._forget(kind, key, text(received, "metadata", "uid"))
        return key

    def drop_uid(self, kind: str, uid: str) -> None:
        """Forget an object of which only its UID is at hand."""
        for key in [key for key, found in self._objects[kind].items() if uid in found]:
            self._forget(kind, key, uid)

    def forget_missing(self, kind: str, existing: frozenset[str], known_before: frozenset[str]) -> list[Key]:
        """Forget objects that were known before a list was asked for and are not in it."""
        missing = [
            (key, uid)
            for key, found in self._objects[kind].items()
            for uid in found
            if uid in known_before and uid not in existing
        ]
        for key, uid in missing:
            self._forget(kind, key, uid)
        return [key for key, _ in missing]

    def uids(self, kind: str) -> frozenset[str]:
        """UIDs of all known objects of a kind."""
        return frozenset(uid for found in self._objects[kind].values() for uid in found)

    def lags(self, kind: str, listed: Mapping[str, str], existing: Mapping[str, str]) -> bool:
        """Whether something that was listed a while ago, and still exists, is not known yet, or only in an older
        version: its watch is dead."""
        known = {uid: kept for found in self._objects[kind].values() for uid, kept in found.items()}
        return any(
            uid not in known or _is_older(known[uid].version, version)
            for uid, version in listed.items()
            if uid in existing
        )

    def resources(self) -> list[Key]:
        """All resources."""
        return list(self._objects[RESOURCE])

    def resource(self, key: Key) -> Received | None:
        """The user's resource; the youngest, should two be known under one name."""
        found = self._read(RESOURCE, key)
        return max(found, key=lambda r: text(r, "metadata", "creationTimestamp"), default=None)

    def children(self, key: Key) -> Iterable[Received]:
        """Child objects that carry the name of a resource, and the claim that it uses."""
        found = [found for kind in CHILD_KINDS for found in self._read(kind, key)]
        return [*found, *self.volume(key).claims]

    def volume(self, key: Key) -> VolumeSeen:
        """What is around the claim that a resource uses."""
        resource = self.resource(key)
        place = _claim_of(resource) if resource is not None else None
        if place is None:
            return VolumeSeen()
        jobs, pods, claims = (self._read(kind, place) for kind in (JOB, POD, CLAIM))
        return VolumeSeen(jobs, pods, claims)

    def concerned(self, kind: str, received: Received) -> list[Key]:
        """The resources that may want to know of an object."""
        place = _place(kind, received)
        if not place.name.startswith(_CLAIM):
            return [place]
        return [
            key
            for key, found in self._objects[RESOURCE].items()
            if key.namespace == place.namespace and any(kept.claim == place for kept in found.values())
        ]

    def pods(self, key: Key) -> Iterable[Received]:
        """Pods that carry the name of a resource."""
        return self._read(POD, key)

    def _read(self, kind: str, key: Key) -> list[Received]:
        return [json.loads(kept.content) for kept in self._objects[kind].get(key, {}).values()]

    def _forget(self, kind: str, key: Key, uid: str) -> None:
        found = self._objects[kind].get(key, {})
        found.pop(uid, None)
        if not found:
            self._objects[kind].pop(key, None)


@dataclass(frozen=True, slots=True)
class _Kept:
    version: str
    content: bytes
    """JSON."""
    claim: Key | None = None
    """Of a resource: where what is around the claim that it uses is kept."""


def _kept(kind: str, received: Received) -> _Kept:
    """With kind and version of the API, which items of a list lack. Without the managers of its fields, often the
    larger half; and of a pod's spec, which is that of its template, only what is read of it."""
    metadata = {name: value for name, value in received["metadata"].items() if name != "managedFields"}
    found = {**received, "apiVersion": API_KINDS[kind].api_version, "kind": kind, "metadata": metadata}
    if kind == POD:
        found["spec"] = _pod_spec(dig(received, "spec"))
    content = json.dumps(found, separators=(",", ":")).encode()
    return _Kept(_version(received), content, _claim_of(received) if kind == RESOURCE else None)


def _claim_of(resource: Received) -> Key | None:
    name = claim_name(resource)
    return None if name is None else _claim_place(text(resource, "metadata", "namespace"), claim_mark(name))


def _pod_spec(spec: Any) -> dict[str, Any]:
    containers = {
        group: [_container(one) for one in mappings(spec, group)]
        for group in ("initContainers", "containers")
    }
    volumes = [one for one in mappings(spec, "volumes") if one.keys() & {"configMap", "image"}]
    return {"nodeName": text(spec, "nodeName"), "volumes": volumes, **containers}


def _container(container: Received) -> dict[str, Any]:
    """Of the environment only where a variable's secret is, which messages about it name."""
    secret = [one for one in mappings(container, "env") if dig(one, "valueFrom", "secretKeyRef") is not None]
    return {"name": container.get("name"), "resources": container.get("resources"), "env": secret}


def _version(received: Received) -> str:
    return text(received, "metadata", "resourceVersion")


_CLAIM = "claim:"
"""Begins the names under which things around a claim are kept; no resource is named so."""


def _place(kind: str, received: Received) -> Key:
    """Under which an object is kept: the resource itself, the one that its label names, or the claim."""
    namespace, labels = text(received, "metadata", "namespace"), dig(received, "metadata", "labels")
    if kind == RESOURCE:
        return key_of(received)
    if kind == CLAIM:
        return _claim_place(namespace, claim_mark(text(received, "metadata", "name")))
    if kind == JOB or text(labels, JOB_NAME):
        return _claim_place(namespace, text(labels, CLAIM_LABEL))
    return Key(namespace, text(labels, SERVICE_LABEL))


def _claim_place(namespace: str, mark: str) -> Key:
    return Key(namespace, _CLAIM + mark)


def _is_older(one: str, other: str) -> bool:
    """Of two resource versions of one object."""
    return one.isdigit() and other.isdigit() and int(one) < int(other)
