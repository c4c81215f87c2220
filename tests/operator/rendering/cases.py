"""All cases of rendering: one table for each part of the resource."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.operator.rendering import autoscaling, caches, classes, network, pods, settings, sources
from tests.operator.rendering.case import GOLDEN_SPECS, Case

CASES: tuple[Case, ...] = (
    *sources.CASES,
    *settings.CASES,
    *network.CASES,
    *pods.CASES,
    *classes.CASES,
    *autoscaling.CASES,
    *caches.CASES,
)
SPECS: Mapping[str, Mapping[str, Any]] = {**GOLDEN_SPECS, **{case.says: case.spec for case in CASES}}
"""Every spec that tests render, by its name or by what is said of it."""
