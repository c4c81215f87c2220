"""Finds what a valid spec asks for and cannot have; each refusal is a value that says what to
change.
"""

from __future__ import annotations

from embedserve_operator.api.hardware import HardwareClass
from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.manifests.placement import find_accelerators, find_architectures, find_image
from embedserve_operator.plan.endpoints import find_forbidden_endpoint
from embedserve_operator.settings import RenderSettings
from embedserve_operator.state.failures import Failure, build_refusal

# The first compute capabilities with 8-bit products, as the runtime's torch engine requires them.
MIN_CAPABILITY_FOR_8_BIT = {"fp8": (8, 9), "int8": (8, 0)}


def find_refusal(spec: EmbeddingServiceSpec, settings: RenderSettings) -> Failure | None:
    """Return why no children can be made of the spec; None when they can."""
    hardware = settings.classes.get(spec.hardware.class_)
    if hardware is None:
        return build_refusal(
            "UnknownHardwareClass",
            f"spec.hardware.class: there is no class {spec.hardware.class_}; there are: "
            f"{', '.join(sorted(settings.classes))}",
        )
    if hardware.image not in settings.images:
        return build_refusal(
            "ImageNotConfigured",
            f"spec.hardware.class {spec.hardware.class_} needs the image for {hardware.image}, and none is "
            f"configured; set runtime.{hardware.image}Image in the chart's values, or choose another class",
        )
    return (
        _find_accelerator_refusal(spec, hardware)
        or _find_precision_refusal(spec, hardware)
        or _find_image_refusal(spec, hardware, settings)
        or _find_scaling_refusal(spec, settings)
        or _find_endpoint_refusal(spec, settings)
    )


def _find_accelerator_refusal(spec: EmbeddingServiceSpec, hardware: HardwareClass) -> Failure | None:
    asks_for_accelerators = spec.hardware.count is not None or spec.hardware.resource_name is not None
    if hardware.resource_name is None and asks_for_accelerators:
        return build_refusal(
            "NoAccelerators",
            f"spec.hardware: class {spec.hardware.class_} has no accelerators; remove count and resourceName, or "
            "choose another class",
        )
    return None


def _find_precision_refusal(spec: EmbeddingServiceSpec, hardware: HardwareClass) -> Failure | None:
    """Return why the precision cannot be served: 8 bit needs torch on an accelerator that supports it, and
    int8 can also be had for ONNX by a conversion.
    """
    precision = spec.model.precision
    kind = spec.engine if spec.engine != "auto" else hardware.engine
    is_converted = precision == "int8" and spec.onnx is not None and kind != "torch"
    if precision not in MIN_CAPABILITY_FOR_8_BIT or is_converted:
        return None
    if kind != "torch":
        remedy = "add onnx, which converts the model, or choose" if precision == "int8" else "choose"
        return build_refusal(
            "PrecisionUnsupported",
            f"spec.model.precision: {precision} needs the torch engine, but the engine is {kind}; {remedy} another "
            "precision, class or engine",
        )
    first = MIN_CAPABILITY_FOR_8_BIT[precision]
    below = [
        capability
        for capability in hardware.compute_capabilities
        if tuple(map(int, capability.split("."))) < first
    ]
    if below or hardware.resource_name is None:
        available = f"compute capability {', '.join(below)}" if below else "no accelerator"
        return build_refusal(
            "PrecisionUnsupported",
            f"spec.model.precision: {precision} needs an accelerator of compute capability {first[0]}.{first[1]} or "
            f"higher, and class {spec.hardware.class_} has {available}; choose another precision or class",
        )
    return None


def _find_image_refusal(
    spec: EmbeddingServiceSpec, hardware: HardwareClass, settings: RenderSettings
) -> Failure | None:
    image = find_image(spec, settings)
    allowed = {configured.repository for configured in settings.images.values()} | set(
        settings.allowed_images
    )
    if spec.runtime_image is not None and "*" not in allowed and image.repository not in allowed:
        return build_refusal(
            "ImageNotAllowed",
            f"spec.runtimeImage: {image.repository} is not one of the repositories that the operator accepts "
            f"images from ({', '.join(sorted(allowed))}); use one of those, or have it added to the "
            "chart's runtime.allowedImages",
        )
    if not find_architectures(hardware, image):
        return build_refusal(
            "ImageLacksArchitecture",
            f"spec.hardware.class {spec.hardware.class_} needs {' or '.join(hardware.architectures)}, and the image "
            f"{image.reference} has only {' and '.join(image.architectures)}",
        )
    accelerators = find_accelerators(spec, settings)
    if accelerators is None or spec.resources is None:
        return None
    if accelerators[0] in (spec.resources.limits or {}) or accelerators[0] in (spec.resources.requests or {}):
        return build_refusal(
            "ResourcesConflict",
            f"spec.resources names {accelerators[0]}, which the hardware class requests: use spec.hardware.count "
            "instead",
        )
    return None


def _find_scaling_refusal(spec: EmbeddingServiceSpec, settings: RenderSettings) -> Failure | None:
    autoscaling = spec.autoscaling
    if autoscaling is None:
        return None
    if settings.keda is None and (autoscaling.triggers or autoscaling.min_replicas == 0):
        return build_refusal(
            "KedaNeeded",
            "spec.autoscaling: triggers and minReplicas: 0 need KEDA, and the chart's keda.enabled is false; set it "
            "to true, or use metrics and minReplicas: 1",
        )
    if settings.keda is not None and autoscaling.metrics:
        return build_refusal(
            "KedaDecides",
            "spec.autoscaling.metrics: KEDA decides the number of pods (the chart's keda.enabled); use triggers, for "
            "example of type cpu, instead",
        )
    return None


def _find_endpoint_refusal(spec: EmbeddingServiceSpec, settings: RenderSettings) -> Failure | None:
    chosen = find_forbidden_endpoint(spec, settings.allowed_endpoints)
    if chosen is None:
        return None
    return build_refusal(
        "EndpointNotAllowed",
        f"{chosen}: Secrets of this namespace may not be sent to a server that the chart's allowedEndpoints does not "
        "name; have it added there, or remove the Secret",
    )
