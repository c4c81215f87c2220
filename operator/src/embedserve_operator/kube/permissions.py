"""Lists what the operator may do in the API, as the chart grants it; a test compares the two."""

from __future__ import annotations

from typing import NamedTuple

from embedserve_operator.api.types import GROUP, PLURAL


class Permission(NamedTuple):
    """Allows one verb on one kind of object. `resource` names a subresource after a slash."""

    group: str
    resource: str
    verb: str

    def describe(self) -> str:
        return f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''}"


_READ = ("get", "list")
_WATCH = (*_READ, "watch")
_WRITE = ("create", "patch", "delete")
_RULES: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    (GROUP, (PLURAL,), ("list", "watch")),
    (GROUP, (f"{PLURAL}/status",), ("patch",)),
    ("apps", ("deployments",), (*_WATCH, *_WRITE)),
    ("", ("configmaps", "services"), (*_WATCH, *_WRITE)),
    ("", ("persistentvolumeclaims",), (*_WATCH, *_WRITE)),
    ("batch", ("jobs",), ("list", "watch", "create", "delete")),
    ("autoscaling", ("horizontalpodautoscalers",), (*_WATCH, *_WRITE)),
    ("networking.k8s.io", ("networkpolicies",), (*_WATCH, *_WRITE)),
    ("policy", ("poddisruptionbudgets",), (*_WATCH, *_WRITE)),
    ("monitoring.coreos.com", ("servicemonitors",), (*_READ, *_WRITE)),
    ("keda.sh", ("scaledobjects",), (*_READ, *_WRITE)),
    ("", ("pods",), ("list", "watch", "patch")),
    ("", ("events",), ("list", "create")),
)
SERVICE_PERMISSIONS: tuple[Permission, ...] = tuple(
    Permission(group, resource, verb)
    for group, resources, verbs in _RULES
    for resource in resources
    for verb in verbs
)
"""The permissions that are needed in each namespace that is watched, or in all of them."""
CLUSTER_PERMISSIONS: tuple[Permission, ...] = tuple(
    Permission(group, resource, verb)
    for group, resource in (("", "nodes"), ("node.k8s.io", "runtimeclasses"))
    for verb in ("list", "watch")
)
"""The permissions that are needed where nodes are watched."""
