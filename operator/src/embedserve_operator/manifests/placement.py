"""Decides where pods may run: what the hardware class, the image's architectures and the user
require of a node.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from embedserve_operator.api.hardware import ARCHITECTURE, COMPUTE_MAJOR, COMPUTE_MINOR, SYSTEM, HardwareClass
from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.settings import RenderSettings, RuntimeImage
from embedserve_operator.state.nodes import ClusterState, NodeRequirements

ZONE = "topology.kubernetes.io/zone"
HOSTNAME = "kubernetes.io/hostname"


def find_hardware_class(spec: EmbeddingServiceSpec, settings: RenderSettings) -> HardwareClass:
    """Return the hardware class that the spec names; it must exist (`plan.refusals`)."""
    return settings.classes[spec.hardware.class_]


def find_image(spec: EmbeddingServiceSpec, settings: RenderSettings) -> RuntimeImage:
    """Return the image that the pods run: what the class has, or what the manifest names in its place."""
    image = settings.images[find_hardware_class(spec, settings).image]
    if spec.runtime_image is None or image.is_exporter:
        return image
    return replace(image, reference=spec.runtime_image)


def find_architectures(hardware: HardwareClass, image: RuntimeImage) -> tuple[str, ...]:
    """Return the architectures that both the class and the image have."""
    return tuple(
        architecture
        for architecture in image.architectures
        if not hardware.architectures or architecture in hardware.architectures
    )


def find_accelerators(spec: EmbeddingServiceSpec, settings: RenderSettings) -> tuple[str, int] | None:
    """Return the resource and the number of the accelerators of a pod; None for classes without accelerators."""
    hardware = find_hardware_class(spec, settings)
    if hardware.resource_name is None:
        return None
    return spec.hardware.resource_name or hardware.resource_name, spec.hardware.count or 1


def runs_torch(spec: EmbeddingServiceSpec, hardware: HardwareClass) -> bool:
    """Return whether torch runs the model: the spec says so, or else the class."""
    return (hardware.engine if spec.engine == "auto" else spec.engine) == "torch"


def build_node_requirements(spec: EmbeddingServiceSpec, settings: RenderSettings) -> NodeRequirements:
    """Return what the pods require of a node, except for the user's own affinity, which only the scheduler
    judges.
    """
    hardware = find_hardware_class(spec, settings)
    accelerators = find_accelerators(spec, settings)
    return NodeRequirements(
        capabilities=hardware.compute_capabilities,
        accelerator_labels=hardware.accelerator_labels,
        architectures=find_architectures(hardware, find_image(spec, settings)),
        labels={SYSTEM: "linux", **hardware.node_labels, **(spec.pod.node_selector or {})},
        tolerations=(*hardware.tolerations, *(spec.pod.tolerations or ())),
        resource_name=accelerators[0] if accelerators is not None else None,
        count=accelerators[1] if accelerators is not None else 0,
    )


def build_placement(
    spec: EmbeddingServiceSpec,
    settings: RenderSettings,
    labels: dict[str, str],
    *,
    runtime_class: str | None = None,
) -> Manifest:
    """Return the fields of a pod spec that decide where the pod runs.

    `labels` select the pods of the revision. `runtime_class` is that of the hardware class, if there is one.
    """
    hardware, requirements = find_hardware_class(spec, settings), build_node_requirements(spec, settings)
    fields: dict[str, Any] = {
        "nodeSelector": spec.pod.node_selector,
        "affinity": _build_affinity(requirements, hardware, spec.pod.affinity or {}),
        "tolerations": [toleration.as_wire() for toleration in requirements.tolerations] or None,
        "topologySpreadConstraints": [
            constraint.as_wire() for constraint in spec.pod.topology_spread_constraints
        ]
        if spec.pod.topology_spread_constraints is not None
        else [_build_spread_constraint(key, labels) for key in (ZONE, HOSTNAME)],
        "runtimeClassName": spec.pod.runtime_class_name or runtime_class,
        "priorityClassName": spec.pod.priority_class_name,
        "schedulerName": spec.pod.scheduler_name,
    }
    return {key: value for key, value in fields.items() if value is not None}


def find_runtime_class(
    spec: EmbeddingServiceSpec, settings: RenderSettings, cluster: ClusterState
) -> str | None:
    """Return the RuntimeClass of the hardware class where the cluster has it: clusters whose nodes need none have
    none.
    """
    name = find_hardware_class(spec, settings).runtime_class_name
    return name if name in cluster.runtime_classes else None


def _build_spread_constraint(key: str, labels: dict[str, str]) -> Manifest:
    return {
        "maxSkew": 1,
        "topologyKey": key,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels},
        # Pods of the previous template are going away and do not count.
        "matchLabelKeys": ["pod-template-hash"],
    }


def _build_affinity(requirements: NodeRequirements, hardware: HardwareClass, affinity: Manifest) -> Manifest:
    """Return the user's affinity with each of its required node terms narrowed to the class, since terms are
    alternatives.
    """
    node = affinity.get("nodeAffinity") or {}
    required = node.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    user_terms = list_terms(required, "nodeSelectorTerms") or [{}]
    terms = [
        {**user_term, "matchExpressions": [*list_terms(user_term, "matchExpressions"), *class_expressions]}
        for user_term in user_terms
        for class_expressions in _build_node_terms(requirements, hardware)
    ]
    selection = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {**affinity, "nodeAffinity": {**node, **selection}}


def list_terms(section: Any, name: str) -> list[Manifest]:
    """Return the terms of a list in the user's affinity, which the API server checks only in the child; what
    cannot be a term is left out.
    """
    items = section.get(name) if isinstance(section, dict) else None
    return [term for term in items if isinstance(term, dict)] if isinstance(items, list) else []


def _build_node_terms(requirements: NodeRequirements, hardware: HardwareClass) -> list[list[Manifest]]:
    """Return alternative lists of requirements: one for each major compute capability, then one for each label that a
    cloud has for such accelerators.

    The scheduler and the Cluster Autoscaler take a node that fulfills one of them. Karpenter tries them in this order.
    """
    always = [
        _build_in_expression(SYSTEM, "linux"),
        _build_in_expression(ARCHITECTURE, *requirements.architectures),
        *(_build_in_expression(key, value) for key, value in sorted(hardware.node_labels.items())),
    ]
    minors: dict[str, list[str]] = {}
    for capability in requirements.capabilities:
        major, _, minor = capability.partition(".")
        minors.setdefault(major, []).append(minor)
    by_capability = [
        [_build_in_expression(COMPUTE_MAJOR, major), _build_in_expression(COMPUTE_MINOR, *minors_of_major)]
        for major, minors_of_major in minors.items()
    ]
    by_label = [
        [_build_in_expression(key, *values)] for key, values in requirements.accelerator_labels.items()
    ]
    return [[*always, *alternative] for alternative in (*by_capability, *by_label)] or [always]


def _build_in_expression(key: str, *values: str) -> Manifest:
    return {"key": key, "operator": "In", "values": list(values)}
