"""What a valid spec may still ask that cannot be: each refusal is a value with what to change."""

from __future__ import annotations

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.hardware import HardwareClass
from embedserve_operator.settings import RenderSettings
from embedserve_operator.specs.placement import accelerators, architectures, image_of
from embedserve_operator.world import Failure

# The first compute capabilities whose units multiply in 8 bit, as the runtime's torch engine takes them.
FIRST_OF_EIGHT_BIT = {"fp8": (8, 9), "int8": (8, 0)}


def refusal(spec: EmbeddingServiceSpec, settings: RenderSettings) -> Failure | None:
    """Why no children can be made of the spec; None when they can."""
    hardware = settings.classes.get(spec.hardware.class_)
    if hardware is None:
        return _no(
            "UnknownHardwareClass",
            f"spec.hardware.class: there is no class {spec.hardware.class_}; there are: "
            f"{', '.join(sorted(settings.classes))}",
        )
    if hardware.image not in settings.images:
        return _no(
            "ImageNotConfigured",
            f"spec.hardware.class {spec.hardware.class_} runs the image for {hardware.image}, and the operator knows "
            f"none; set runtime.{hardware.image}Image in the chart's values, or choose another class",
        )
    return (
        _accelerator_refusal(spec, hardware)
        or _precision_refusal(spec, hardware)
        or _image_refusal(spec, hardware, settings)
        or _scaling_refusal(spec, settings)
    )


def _accelerator_refusal(spec: EmbeddingServiceSpec, hardware: HardwareClass) -> Failure | None:
    asked = spec.hardware.count is not None or spec.hardware.resource_name is not None
    if hardware.resource_name is None and asked:
        return _no(
            "NoAccelerators",
            f"spec.hardware: class {spec.hardware.class_} has no accelerators; remove count and resourceName, or "
            "choose another class",
        )
    return None


def _precision_refusal(spec: EmbeddingServiceSpec, hardware: HardwareClass) -> Failure | None:
    """8 bit is torch's on an accelerator, whose units must have it; int8 is also made by conversion, for ONNX."""
    precision = spec.model.precision
    kind = spec.engine if spec.engine != "auto" else hardware.engine
    converted = precision == "int8" and spec.onnx is not None and kind != "torch"
    if precision not in FIRST_OF_EIGHT_BIT or converted:
        return None
    if kind != "torch":
        ways = "add onnx, which converts the model, or choose" if precision == "int8" else "choose"
        return _no(
            "PrecisionUnsupported",
            f"spec.model.precision: {precision} needs the engine torch, here it is {kind}; {ways} another precision, "
            "class or engine",
        )
    first = FIRST_OF_EIGHT_BIT[precision]
    below = [one for one in hardware.compute_capabilities if tuple(map(int, one.split("."))) < first]
    if below or hardware.resource_name is None:
        has = f"compute capability {', '.join(below)}" if below else "no accelerator"
        return _no(
            "PrecisionUnsupported",
            f"spec.model.precision: {precision} needs an accelerator from compute capability {first[0]}.{first[1]} on, "
            f"class {spec.hardware.class_} has {has}; choose another precision or class",
        )
    return None


def _image_refusal(
    spec: EmbeddingServiceSpec, hardware: HardwareClass, settings: RenderSettings
) -> Failure | None:
    image = image_of(spec, settings)
    if not architectures(hardware, image):
        return _no(
            "ImageLacksArchitecture",
            f"spec.hardware.class {spec.hardware.class_} needs {' or '.join(hardware.architectures)}, and the image "
            f"{image.reference} has only {' and '.join(image.architectures)}",
        )
    asked = accelerators(spec, settings)
    if asked is None or spec.resources is None:
        return None
    if asked[0] in (spec.resources.limits or {}) or asked[0] in (spec.resources.requests or {}):
        return _no(
            "ResourcesConflict",
            f"spec.resources names {asked[0]}, which the hardware class asks for: use spec.hardware.count instead",
        )
    return None


def _scaling_refusal(spec: EmbeddingServiceSpec, settings: RenderSettings) -> Failure | None:
    wanted = spec.autoscaling
    if wanted is None:
        return None
    if settings.keda is None and (wanted.triggers or wanted.min_replicas == 0):
        return _no(
            "KedaNeeded",
            "spec.autoscaling: triggers and minReplicas: 0 are KEDA's, and the chart's keda.enabled is false; enable "
            "it, or use metrics and minReplicas: 1",
        )
    if settings.keda is not None and wanted.metrics:
        return _no(
            "KedaDecides",
            "spec.autoscaling.metrics: KEDA decides the number of pods (the chart's keda.enabled); use triggers, for "
            "example of type cpu, instead",
        )
    return None


def _no(reason: str, message: str) -> Failure:
    return Failure(reason, message, heals=False)
