"""What the watches have seen, by resource.

Fed by watch events and by the answers to our own writes, so that a pass right after a write does not work on
the past. `forget_missing` repairs what a watch that was cut has missed: a deletion during the gap.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from embedserve_operator.kinds import CHILD_KINDS, NODE, POD, RESOURCE
from embedserve_operator.nodes import ClusterFacts, NodeFacts
from embedserve_operator.observe import key_of, read_node
from embedserve_operator.specs.metadata import SERVICE_LABEL
from embedserve_operator.wire import Received, text
from embedserve_operator.world import Key

KINDS = (RESOURCE, *CHILD_KINDS, POD)


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
    """Objects by kind and by the resource that they belong to."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[Key, dict[str, Received]]] = {kind: defaultdict(dict) for kind in KINDS}

    def put(self, kind: str, received: Received) -> Key:
        """Remember an object unless a newer version of it is known; returns the resource that it belongs
        to."""
        key = owner_key(kind, received)
        uid = text(received, "metadata", "uid")
        known = self._objects[kind][key].get(uid)
        if known is None or not _is_older(received, known):
            self._objects[kind][key][uid] = _kept(kind, received)
        return key

    def drop(self, kind: str, received: Received) -> Key:
        """Forget an object; returns the resource that it belonged to."""
        key = owner_key(kind, received)
        self._forget(kind, key, text(received, "metadata", "uid"))
        return key

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
        known = {uid: received for found in self._objects[kind].values() for uid, received in found.items()}
        return any(
            uid not in known or _is_older(known[uid], {"metadata": {"resourceVersion": version}})
            for uid, version in listed.items()
            if uid in existing
        )

    def resources(self) -> list[Key]:
        """All resources."""
        return list(self._objects[RESOURCE])

    def resource(self, key: Key) -> Received | None:
        """The user's resource; the youngest, should two be known under one name."""
        found = self._objects[RESOURCE].get(key, {}).values()
        return max(found, key=lambda r: text(r, "metadata", "creationTimestamp"), default=None)

    def children(self, key: Key) -> Iterable[Received]:
        """Child objects that carry the name of a resource."""
        return [found for kind in CHILD_KINDS for found in self._objects[kind].get(key, {}).values()]

    def pods(self, key: Key) -> Iterable[Received]:
        """Pods that carry the name of a resource."""
        return list(self._objects[POD].get(key, {}).values())

    def _forget(self, kind: str, key: Key, uid: str) -> None:
        found = self._objects[kind].get(key, {})
        found.pop(uid, None)
        if not found:
            self._objects[kind].pop(key, None)


def _kept(kind: str, received: Received) -> Received:
    """With its kind, which items of a list lack; without the managers of its fields, often the larger half."""
    metadata = {name: value for name, value in received["metadata"].items() if name != "managedFields"}
    return {**received, "kind": kind, "metadata": metadata}


def owner_key(kind: str, received: Received) -> Key:
    """The resource that an object belongs to: itself, or the one that its label names."""
    if kind == RESOURCE:
        return key_of(received)
    return Key(text(received, "metadata", "namespace"), text(received, "metadata", "labels", SERVICE_LABEL))


def _is_older(one: Received, other: Received) -> bool:
    versions = [text(received, "metadata", "resourceVersion") for received in (one, other)]
    if not all(version.isdigit() for version in versions):
        return False
    return int(versions[0]) < int(versions[1])
