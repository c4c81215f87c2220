"""Hardware classes as data: where the pods of a class may run and how they may be replaced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class HardwareClass:
    """What `spec.hardware.class` stands for."""

    name: str
    node_selector: Mapping[str, str]
    """Labels that a node must carry."""
    max_surge: int
    """Pods that a rolling update may run beyond the wanted number; 0 where no spare device can be assumed."""
    max_unavailable: int
    """Pods that a rolling update may miss."""


CLASSES: Mapping[str, HardwareClass] = MappingProxyType(
    {
        "cpu": HardwareClass(
            name="cpu",
            node_selector=MappingProxyType({"kubernetes.io/os": "linux"}),
            max_surge=1,
            max_unavailable=0,
        ),
    }
)
