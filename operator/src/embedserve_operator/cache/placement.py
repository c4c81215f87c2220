"""Finds the resources that a change of a node or RuntimeClass concerns.

Nodes change all the time, and most changes mean nothing for most services.
"""

from __future__ import annotations

from dataclasses import dataclass

from embedserve_operator.cache.objects import Generations, ObjectCache
from embedserve_operator.kube.objects import format_canonical_json
from embedserve_operator.kube.references import ObjectKey
from embedserve_operator.manifests.placement import build_node_requirements
from embedserve_operator.observe.resource import read_resource
from embedserve_operator.settings import RenderSettings
from embedserve_operator.state.nodes import NodeRequirements, NodeState, match_nodes


@dataclass(frozen=True, slots=True)
class _Placement:
    """The part of the cluster that a spec depends on."""

    requirements: NodeRequirements
    runtime_class: str | None
    """RuntimeClass that the pods get where the cluster has it."""
    identity: str
    """Equal for all specs with equal requirements."""


class PlacementIndex:
    """Knows what the resources of the cache require of nodes; each spec is read once."""

    def __init__(self, objects: ObjectCache, settings: RenderSettings) -> None:
        self._objects = objects
        self._settings = settings
        self._placements: dict[ObjectKey, tuple[Generations, _Placement | None]] = {}

    def find_concerned_by_node(self, before: NodeState | None, after: NodeState | None) -> list[ObjectKey]:
        """Return the resources for whose pods a node has changed; None stands for a node that does not exist."""
        old, new = (
            [node for node in (before,) if node is not None],
            [node for node in (after,) if node is not None],
        )
        is_concerned: dict[str, bool] = {}
        concerned = []
        for key, placement in self._list_placements():
            if placement.identity not in is_concerned:
                requirements = placement.requirements
                is_concerned[placement.identity] = match_nodes(requirements, old) != match_nodes(
                    requirements, new
                )
            if is_concerned[placement.identity]:
                concerned.append(key)
        return concerned

    def find_concerned_by_runtime_class(self, name: str) -> list[ObjectKey]:
        """Return the resources whose pods get a RuntimeClass where the cluster has it."""
        return [key for key, placement in self._list_placements() if placement.runtime_class == name]

    def _list_placements(self) -> list[tuple[ObjectKey, _Placement]]:
        """Return the placement of each resource whose spec can be carried out."""
        generations_by_key = self._objects.list_generations()
        self._placements = {
            key: cached
            if (cached := self._placements.get(key)) is not None and cached[0] == generations
            else (generations, self._read_placement(key))
            for key, generations in generations_by_key.items()
        }
        return [(key, placement) for key, (_, placement) in self._placements.items() if placement is not None]

    def _read_placement(self, key: ObjectKey) -> _Placement | None:
        received = self._objects.get_resource(key)
        spec = read_resource(received).spec if received is not None else None
        hardware = self._settings.classes.get(spec.hardware.class_) if spec is not None else None
        if spec is None or hardware is None or hardware.image not in self._settings.images:
            return None
        requirements = build_node_requirements(spec, self._settings)
        identity = format_canonical_json(
            [
                requirements.capabilities,
                dict(requirements.accelerator_labels),
                requirements.architectures,
                dict(requirements.labels),
                [toleration.as_wire() for toleration in requirements.tolerations],
                requirements.resource_name,
                requirements.count,
            ]
        )
        is_given = spec.pod.runtime_class_name is not None
        return _Placement(requirements, None if is_given else hardware.runtime_class_name, identity)
