"""Defines what all objects share, lists of them, and the kinds with few fields of their own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import Field, StrictStr

from embedserve_operator.kube.references import ChildRef, ObjectKey
from embedserve_operator.kube.views.base import Count, Flag, Items, Maybe, Part, Text, TextMap, View


class OwnerReference(View):
    """A reference to the object that another one belongs to."""

    uid: Text
    controller: Flag


class Metadata(View):
    """The metadata of an object."""

    name: Text
    namespace: Text
    uid: Text
    resource_version: Text
    generation: Count
    creation_timestamp: Text
    deletion_timestamp: Maybe[StrictStr]
    labels: TextMap
    annotations: TextMap
    owner_references: Items[OwnerReference]

    @property
    def key(self) -> ObjectKey:
        """The namespace and name of the object."""
        return ObjectKey(self.namespace, self.name)

    @property
    def is_being_deleted(self) -> bool:
        """Return whether the object is going away."""
        return self.deletion_timestamp is not None

    @property
    def controller_uid(self) -> str:
        """The UID of the object that controls this one; empty when there is none."""
        return next((owner.uid for owner in self.owner_references if owner.controller), "")


class Object(View):
    """The fields that objects of all kinds share."""

    kind: Text
    metadata: Part[Metadata]

    @property
    def ref(self) -> ChildRef:
        """The kind and name of the object."""
        return ChildRef(self.kind, self.metadata.name)


class ObjectCondition(View):
    """A condition of an object's status."""

    type: Text
    status: Text
    reason: Text
    message: Text
    last_transition_time: Text

    @property
    def is_true(self) -> bool:
        """Return whether the condition holds."""
        return self.status == "True"


def find_condition(conditions: Iterable[ObjectCondition], kind: str) -> ObjectCondition | None:
    """Return the condition of that type, if it is among them."""
    return next((condition for condition in conditions if condition.type == kind), None)


class ConfigMap(Object):
    """The fields that are read of a ConfigMap."""

    data: TextMap
    immutable: Flag


class Secret(Object):
    """The fields that are read of the operator's own Secret."""

    data: TextMap = Field(repr=False)


class ServiceSpec(View):
    """The fields that are read of the spec of a Service."""

    selector: TextMap


class Service(Object):
    """The fields that are read of a Service."""

    spec: Part[ServiceSpec]


class Event(Object):
    """The fields that are read of an event."""

    message: Text
    last_timestamp: Text


class ListMetadata(View):
    """The metadata of a list."""

    continue_: Text = Field(alias="continue")
    """The token to send for the next part of the list; empty with the last one."""


class ObjectList(View):
    """A list of objects, each as it was received."""

    metadata: Part[ListMetadata]
    items: Items[dict[str, Any]]
