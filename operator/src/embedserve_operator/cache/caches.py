"""Joins the caches that one process fills and reads."""

from __future__ import annotations

from dataclasses import dataclass

from embedserve_operator.cache.cluster import ClusterCache
from embedserve_operator.cache.objects import ObjectCache


@dataclass(frozen=True, slots=True)
class Caches:
    """The caches of what the watches have seen."""

    objects: ObjectCache
    """Resources, their children and their pods."""
    cluster: ClusterCache
    """Holds what belongs to no resource: nodes, classes, the kinds that can be made."""
