"""Where pods may run: what the hardware class, the image's architectures and the user ask of a node."""

from __future__ import annotations

from typing import Any

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.hardware import ARCHITECTURE, COMPUTE_MAJOR, COMPUTE_MINOR, SYSTEM, HardwareClass
from embedserve_operator.nodes import ClusterFacts, Demand
from embedserve_operator.settings import RenderSettings, RuntimeImage
from embedserve_operator.wire import Manifest, mappings

ZONE = "topology.kubernetes.io/zone"
HOSTNAME = "kubernetes.io/hostname"


def hardware_of(spec: EmbeddingServiceSpec, settings: RenderSettings) -> HardwareClass:
    """The hardware class that the spec names; it must exist (`plan.refusals`)."""
    return settings.classes[spec.hardware.class_]


def image_of(spec: EmbeddingServiceSpec, settings: RenderSettings) -> RuntimeImage:
    """The image that the class runs."""
    return settings.images[hardware_of(spec, settings).image]


def architectures(hardware: HardwareClass, image: RuntimeImage) -> tuple[str, ...]:
    """Architectures that both the class and the image have."""
    return tuple(
        one for one in image.architectures if not hardware.architectures or one in hardware.architectures
    )


def accelerators(spec: EmbeddingServiceSpec, settings: RenderSettings) -> tuple[str, int] | None:
    """Resource and number of the accelerators of a pod; None for classes without."""
    hardware = hardware_of(spec, settings)
    if hardware.resource_name is None:
        return None
    return spec.hardware.resource_name or hardware.resource_name, spec.hardware.count or 1


def demand(spec: EmbeddingServiceSpec, settings: RenderSettings) -> Demand:
    """What the pods ask of a node; the user's own affinity aside, which only the scheduler judges."""
    hardware = hardware_of(spec, settings)
    asked = accelerators(spec, settings)
    return Demand(
        capabilities=hardware.compute_capabilities,
        architectures=architectures(hardware, image_of(spec, settings)),
        labels={SYSTEM: "linux", **hardware.node_labels, **(spec.pod.node_selector or {})},
        tolerations=(*hardware.tolerations, *(spec.pod.tolerations or ())),
        resource_name=asked[0] if asked is not None else None,
        count=asked[1] if asked is not None else 0,
    )


def placement(
    spec: EmbeddingServiceSpec, settings: RenderSettings, cluster: ClusterFacts, labels: dict[str, str]
) -> Manifest:
    """The fields of a pod spec that decide where it runs. `labels` select the pods of the revision."""
    hardware, wanted = hardware_of(spec, settings), demand(spec, settings)
    fields: dict[str, Any] = {
        "nodeSelector": spec.pod.node_selector,
        "affinity": _affinity(wanted, hardware, spec.pod.affinity or {}),
        "tolerations": [toleration.as_wire() for toleration in wanted.tolerations] or None,
        "topologySpreadConstraints": list(spec.pod.topology_spread_constraints)
        if spec.pod.topology_spread_constraints is not None
        else [_spread(key, labels) for key in (ZONE, HOSTNAME)],
        "runtimeClassName": _runtime_class(spec, hardware, cluster),
        "priorityClassName": spec.pod.priority_class_name,
        "schedulerName": spec.pod.scheduler_name,
    }
    return {key: value for key, value in fields.items() if value is not None}


def _runtime_class(spec: EmbeddingServiceSpec, hardware: HardwareClass, cluster: ClusterFacts) -> str | None:
    """The user's, or the class's where the cluster has it: clusters whose nodes need none have none."""
    if spec.pod.runtime_class_name is not None:
        return spec.pod.runtime_class_name
    return hardware.runtime_class_name if hardware.runtime_class_name in cluster.runtime_classes else None


def _spread(key: str, labels: dict[str, str]) -> Manifest:
    return {
        "maxSkew": 1,
        "topologyKey": key,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels},
        # Pods of the template before are going away and do not count.
        "matchLabelKeys": ["pod-template-hash"],
    }


def _affinity(wanted: Demand, hardware: HardwareClass, given: Manifest) -> Manifest:
    """The user's affinity, each of its required node terms narrowed to the class: terms are alternatives."""
    node = given.get("nodeAffinity") or {}
    required = node.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    theirs = mappings(required, "nodeSelectorTerms") or [{}]
    terms = [
        {**their, "matchExpressions": [*mappings(their, "matchExpressions"), *ours]}
        for their in theirs
        for ours in _terms(wanted, hardware)
    ]
    selection = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {**given, "nodeAffinity": {**node, **selection}}


def _terms(wanted: Demand, hardware: HardwareClass) -> list[list[Manifest]]:
    """Alternative lists of requirements: one for each major compute capability."""
    always = [
        _in(SYSTEM, "linux"),
        _in(ARCHITECTURE, *wanted.architectures),
        *(_in(key, value) for key, value in sorted(hardware.node_labels.items())),
    ]
    minors: dict[str, list[str]] = {}
    for capability in wanted.capabilities:
        major, _, minor = capability.partition(".")
        minors.setdefault(major, []).append(minor)
    if not minors:
        return [always]
    return [
        [*always, _in(COMPUTE_MAJOR, major), _in(COMPUTE_MINOR, *found)] for major, found in minors.items()
    ]


def _in(key: str, *values: str) -> Manifest:
    return {"key": key, "operator": "In", "values": list(values)}
