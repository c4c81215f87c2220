"""Decides which volume the models are kept on, and what its access modes allow.

A volume that only the pods of one node can mount keeps them together. What no arrangement of pods could
make work is refused, so that a pod never waits for a volume that another pod holds.
"""

from __future__ import annotations

from embedserve_operator.api.cache import CacheVolume
from embedserve_operator.api.quantities import parse_quantity
from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.manifests.deployment import find_fixed_replicas
from embedserve_operator.manifests.metadata import build_claim_name
from embedserve_operator.manifests.placement import find_hardware_class
from embedserve_operator.manifests.volume import ModelVolume
from embedserve_operator.settings import RenderSettings
from embedserve_operator.state.failures import Failure, build_refusal
from embedserve_operator.state.jobs import ClaimState
from embedserve_operator.state.models import ModelReport
from embedserve_operator.state.observed import ObservedState
from embedserve_operator.state.resource import Child

READ_WRITE_ONCE, READ_WRITE_ONCE_POD = "ReadWriteOnce", "ReadWriteOncePod"
READ_WRITE_MANY, READ_ONLY_MANY = "ReadWriteMany", "ReadOnlyMany"


def choose_model_volume(observed: ObservedState, spec: EmbeddingServiceSpec) -> ModelVolume | None:
    """Return the volume of a service; None when each pod fetches for itself."""
    cache = spec.cache
    if cache is None:
        return None
    modes = find_access_modes(observed, spec)
    is_shared = READ_WRITE_MANY in modes or (cache.read_only and READ_ONLY_MANY in modes)
    return ModelVolume(
        claim=cache.claim_name or build_claim_name(observed.resource.key.name),
        is_own=cache.volume is not None,
        is_filled=cache.read_only,
        is_single_node=not is_shared,
        is_single_pod=modes == (READ_WRITE_ONCE_POD,),
    )


def find_access_modes(observed: ObservedState, spec: EmbeddingServiceSpec) -> tuple[str, ...]:
    """Return the access modes of the claim; those that allow the least where nothing is known about the claim."""
    if spec.cache is not None and spec.cache.volume is not None:
        return tuple(spec.cache.volume.access_modes)
    claim = find_used_claim(observed)
    return claim.access_modes if claim is not None else (READ_WRITE_ONCE,)


def find_used_claim(observed: ObservedState) -> ClaimState | None:
    """Return the claim that the resource uses, if it exists and claims are known."""
    return next(iter(observed.claims or ()), None)


def choose_claim_size(observed: ObservedState, volume: CacheVolume) -> int | str:
    """Return the room that the service's own claim should ask for: that of the manifest, or more where somebody has
    enlarged the claim. No claim can be made smaller.
    """
    claim = find_used_claim(observed)
    live = None if claim is None else claim.size
    if live is None or (parse_quantity(live) or 0) <= (parse_quantity(volume.size) or 0):
        return volume.size
    return live


def find_cache_refusal(
    observed: ObservedState, spec: EmbeddingServiceSpec, settings: RenderSettings
) -> Failure | None:
    """Return why no pods can work with the volume that the spec asks for; None when they can."""
    if spec.cache is None:
        return None
    modes = find_access_modes(observed, spec)
    return (
        _find_conversion_refusal(spec, settings)
        or _find_read_only_refusal(spec, modes)
        or _find_one_pod_refusal(spec, modes)
        or _find_change_refusal(observed, spec)
    )


def _find_conversion_refusal(spec: EmbeddingServiceSpec, settings: RenderSettings) -> Failure | None:
    if can_run_onnx(spec, settings) or not is_conversion_required(spec):
        return None
    return build_refusal(
        "ConversionNotUsed",
        "spec.onnx requires a conversion (convert: Always, or outputs), and the torch engine does not run ONNX "
        "artifacts; remove spec.onnx, or use engine: onnx",
    )


def _find_read_only_refusal(spec: EmbeddingServiceSpec, modes: tuple[str, ...]) -> Failure | None:
    if spec.cache is None or spec.cache.read_only or modes != (READ_ONLY_MANY,):
        return None
    return build_refusal(
        "VolumeNotWritable",
        f"claim {spec.cache.claim_name} is ReadOnlyMany, so nothing can be fetched into it; set "
        "spec.cache.readOnly if it already holds the model, or use a writable claim",
    )


def _find_one_pod_refusal(spec: EmbeddingServiceSpec, modes: tuple[str, ...]) -> Failure | None:
    fixed = find_fixed_replicas(spec)
    max_pods = spec.autoscaling.max_replicas if fixed is None and spec.autoscaling is not None else fixed or 0
    if modes != (READ_WRITE_ONCE_POD,) or max_pods <= 1:
        return None
    return build_refusal(
        "VolumeForOnePod",
        f"a ReadWriteOncePod volume allows one pod, and up to {max_pods} are requested; use ReadWriteOnce (all pods on "
        "one node) or ReadWriteMany, or one replica",
    )


def _find_change_refusal(observed: ObservedState, spec: EmbeddingServiceSpec) -> Failure | None:
    """Return why a claim differs from the spec in what cannot be changed; the models on it would be lost if it
    were replaced unasked.
    """
    volume, claim = spec.cache.volume if spec.cache is not None else None, find_used_claim(observed)
    if volume is None or claim is None:
        return None
    differences = []
    if set(volume.access_modes) != set(claim.access_modes):
        desired_modes, present_modes = ", ".join(volume.access_modes), ", ".join(claim.access_modes)
        differences.append(f"accessModes {present_modes}, not {desired_modes}")
    if volume.storage_class_name not in (None, claim.storage_class):
        differences.append(f"storageClassName {claim.storage_class}, not {volume.storage_class_name}")
    if not differences:
        return None
    return build_refusal(
        "VolumeClaimConflict",
        f"PersistentVolumeClaim {claim.name} exists with {' and '.join(differences)}, which cannot be changed; set "
        "spec.cache.volume to what it has, or delete it with all its models",
    )


def can_run_onnx(spec: EmbeddingServiceSpec, settings: RenderSettings) -> bool:
    """Return whether the pods may run the model on ONNX Runtime."""
    kind = spec.engine if spec.engine != "auto" else find_hardware_class(spec, settings).engine
    return kind != "torch"


def is_converted(spec: EmbeddingServiceSpec, settings: RenderSettings) -> bool:
    """Return whether the model is to be converted."""
    if spec.onnx is None or spec.onnx.convert == "Never":
        return False
    if spec.cache is None or spec.cache.read_only:
        return False
    return can_run_onnx(spec, settings)


def is_conversion_required(spec: EmbeddingServiceSpec) -> bool:
    """Return whether nothing may be served without the conversion, since the spec insists on it or asks for
    its files.
    """
    return spec.onnx is not None and (spec.onnx.convert == "Always" or spec.onnx.outputs is not None)


def find_outputs_refusal(spec: EmbeddingServiceSpec, report: ModelReport | None) -> Failure | None:
    """Return why the fetched model cannot give the requested ONNX outputs; None when it can, or when that is
    not known.
    """
    requested = spec.onnx.outputs if spec.onnx is not None else None
    available = report.onnx_outputs if report is not None else None
    missing = [name for name in requested or () if available is not None and name not in available]
    if report is None or available is None or not missing:
        return None
    return build_refusal(
        "OnnxOutputsMissing",
        f"spec.onnx.outputs: {', '.join(missing)} are not available from {report.source}, which can give "
        f"{', '.join(available) or 'nothing'}; name only these, or remove outputs",
    )


def is_retained_claim(child: Child) -> bool:
    """Return whether a child is a claim that is to outlive its use."""
    return child.ref.kind == "PersistentVolumeClaim" and not child.view.metadata.controller_uid
