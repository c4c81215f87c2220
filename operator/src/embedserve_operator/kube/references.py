"""Refers to objects: to a resource by its key, to a child by its kind and name."""

from __future__ import annotations

from typing import NamedTuple


class ObjectKey(NamedTuple):
    """The namespace and name of a resource."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ChildRef(NamedTuple):
    """A reference to a child object inside the namespace of its resource."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"
