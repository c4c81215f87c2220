"""Defines the views of objects that belong to the cluster as a whole, and of what the API server says
about itself.
"""

from __future__ import annotations

from embedserve_operator.kube.views.base import Count, Flag, Items, Part, Text, TextMap, View
from embedserve_operator.kube.views.objects import Object, ObjectCondition


class NodeTaint(View):
    """A taint of a node."""

    key: Text
    value: Text
    effect: Text


class NodeSpec(View):
    """The fields that are read of the spec of a node."""

    taints: Items[NodeTaint]
    unschedulable: Flag


class NodeStatus(View):
    """The fields that are read of the status of a node."""

    allocatable: TextMap


class Node(Object):
    """The fields that are read of a node."""

    spec: Part[NodeSpec]
    status: Part[NodeStatus]


class LeaseSpec(View):
    """The spec of a Lease."""

    holder_identity: Text
    lease_duration_seconds: Count
    lease_transitions: Count
    acquire_time: Text
    renew_time: Text


class Lease(Object):
    """The fields that are read of a Lease."""

    spec: Part[LeaseSpec]


class ServiceReference(View):
    """The name of the Service that answers for an API."""

    namespace: Text
    name: Text


class APIServiceSpec(View):
    """The fields that are read of the spec of an APIService."""

    group: Text
    service: Part[ServiceReference]
    ca_bundle: Text


class APIServiceStatus(View):
    """The fields that are read of the status of an APIService."""

    conditions: Items[ObjectCondition]


class APIService(Object):
    """The fields that are read of an APIService: who answers for a version of an API group."""

    spec: Part[APIServiceSpec]
    status: Part[APIServiceStatus]


class ReviewStatus(View):
    """The outcome of an access review."""

    allowed: Flag


class AccessReview(Object):
    """The fields that are read of an access review that the API server has answered."""

    status: Part[ReviewStatus]


class ServerVersion(View):
    """The version of the API server."""

    major: Text
    minor: Text


class DiscoveredName(View):
    """The name of a resource or a group that the API server serves."""

    name: Text


class Discovery(View):
    """The resources of an API version, or the groups of the API server."""

    resources: Items[DiscoveredName]
    groups: Items[DiscoveredName]


class ErrorCause(View):
    """A fault of the content of a request."""

    field: Text
    """Path of the field; empty where the fault is not that of a field."""


class ErrorDetails(View):
    """The faults of the content of a request."""

    causes: Items[ErrorCause]


class ErrorStatus(View):
    """The API server's answer to a request that failed."""

    kind: Text
    message: Text
    reason: Text
    details: Part[ErrorDetails]
