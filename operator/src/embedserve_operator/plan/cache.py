"""Which volume the models are kept on, and what its access modes allow.

A volume that the pods of one node only can mount keeps them together; what no arrangement of pods could make work is
refused. So no pod ever waits for a volume that another one holds.
"""

from __future__ import annotations

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.settings import RenderSettings
from embedserve_operator.specs.deployment import fixed_replicas
from embedserve_operator.specs.metadata import controller_uid, own_claim
from embedserve_operator.specs.placement import hardware_of
from embedserve_operator.specs.volume import ModelVolume
from embedserve_operator.world import Child, ClaimFacts, Failure, ModelReport, World

ONCE, ONE_POD = "ReadWriteOnce", "ReadWriteOncePod"
MANY, READ_MANY = "ReadWriteMany", "ReadOnlyMany"


def model_volume(world: World, spec: EmbeddingServiceSpec) -> ModelVolume | None:
    """The volume of a service; None when each pod fetches for itself."""
    cache = spec.cache
    if cache is None:
        return None
    modes = access_modes(world, spec)
    is_shared = MANY in modes or (cache.read_only and READ_MANY in modes)
    return ModelVolume(
        claim=cache.claim_name or own_claim(world.resource.key.name),
        is_own=cache.volume is not None,
        is_filled=cache.read_only,
        one_node=not is_shared,
        one_pod=modes == (ONE_POD,),
    )


def access_modes(world: World, spec: EmbeddingServiceSpec) -> tuple[str, ...]:
    """What the claim allows; of a claim that nothing is known of, the least."""
    if spec.cache is not None and spec.cache.volume is not None:
        return tuple(spec.cache.volume.access_modes)
    found = used_claim(world)
    return found.access_modes if found is not None else (ONCE,)


def used_claim(world: World) -> ClaimFacts | None:
    """The claim that the resource uses, if it exists and claims are known."""
    return next(iter(world.claims or ()), None)


def cache_refusal(world: World, spec: EmbeddingServiceSpec, settings: RenderSettings) -> Failure | None:
    """Why no pods can work with the volume that the spec asks for; None when they can."""
    if spec.cache is None:
        return None
    modes = access_modes(world, spec)
    return (
        _conversion_refusal(spec, settings)
        or _read_only_refusal(spec, modes)
        or _one_pod_refusal(spec, modes)
        or _change_refusal(world, spec)
    )


def _conversion_refusal(spec: EmbeddingServiceSpec, settings: RenderSettings) -> Failure | None:
    if runs_onnx(spec, settings) or not insists(spec):
        return None
    return _no(
        "ConversionNotUsed",
        "spec.onnx insists on a conversion (convert: Always, or outputs), and the engine is torch, which runs no ONNX "
        "artifact; remove spec.onnx, or take engine: onnx",
    )


def _read_only_refusal(spec: EmbeddingServiceSpec, modes: tuple[str, ...]) -> Failure | None:
    if spec.cache is None or spec.cache.read_only or modes != (READ_MANY,):
        return None
    return _no(
        "VolumeNotWritable",
        f"claim {spec.cache.claim_name} is ReadOnlyMany, so that nothing can be fetched into it; set "
        "spec.cache.readOnly where it holds the model already, or take a claim that can be written",
    )


def _one_pod_refusal(spec: EmbeddingServiceSpec, modes: tuple[str, ...]) -> Failure | None:
    fixed = fixed_replicas(spec)
    most = spec.autoscaling.max_replicas if fixed is None and spec.autoscaling is not None else fixed or 0
    if modes != (ONE_POD,) or most <= 1:
        return None
    return _no(
        "VolumeForOnePod",
        f"a ReadWriteOncePod volume takes one pod, and up to {most} are asked for; take ReadWriteOnce (all pods on one "
        "node) or ReadWriteMany, or one replica",
    )


def _change_refusal(world: World, spec: EmbeddingServiceSpec) -> Failure | None:
    """A claim cannot be changed in these, and the models on it would be lost if it were replaced unasked."""
    wanted, there = spec.cache.volume if spec.cache is not None else None, used_claim(world)
    if wanted is None or there is None:
        return None
    differences = []
    if set(wanted.access_modes) != set(there.access_modes):
        asked, has = ", ".join(wanted.access_modes), ", ".join(there.access_modes)
        differences.append(f"accessModes {has}, not {asked}")
    if wanted.storage_class_name not in (None, there.storage_class):
        differences.append(f"storageClassName {there.storage_class}, not {wanted.storage_class_name}")
    if not differences:
        return None
    return _no(
        "VolumeClaimConflict",
        f"PersistentVolumeClaim {there.name} exists with {' and '.join(differences)}, which cannot be changed; take "
        "what it has, or delete it with all models on it",
    )


def runs_onnx(spec: EmbeddingServiceSpec, settings: RenderSettings) -> bool:
    """Whether the pods may run the model on ONNX Runtime."""
    kind = spec.engine if spec.engine != "auto" else hardware_of(spec, settings).engine
    return kind != "torch"


def converts(spec: EmbeddingServiceSpec, settings: RenderSettings) -> bool:
    """Whether the model is to be converted."""
    wanted = spec.onnx
    return (
        wanted is not None
        and wanted.convert != "Never"
        and spec.cache is not None
        and not spec.cache.read_only
        and runs_onnx(spec, settings)
    )


def insists(spec: EmbeddingServiceSpec) -> bool:
    """Whether nothing is to be served without the conversion: it is insisted upon, or files of it are asked for."""
    return spec.onnx is not None and (spec.onnx.convert == "Always" or spec.onnx.outputs is not None)


def outputs_refusal(spec: EmbeddingServiceSpec, report: ModelReport | None) -> Failure | None:
    """Why the ONNX outputs asked for cannot be had of the model that was fetched; None when they can, or it is not
    known."""
    asked = spec.onnx.outputs if spec.onnx is not None else None
    can = report.onnx_outputs if report is not None else None
    missing = [name for name in asked or () if can is not None and name not in can]
    if report is None or can is None or not missing:
        return None
    return _no(
        "OnnxOutputsMissing",
        f"spec.onnx.outputs: {', '.join(missing)} cannot be had of {report.source}, of which a file can give "
        f"{', '.join(can) or 'nothing'}; name only these, or leave outputs out",
    )


def is_kept_claim(child: Child) -> bool:
    """Whether a child is a claim that is to outlive its use."""
    return child.ref.kind == "PersistentVolumeClaim" and not controller_uid(child.received)


def _no(reason: str, message: str) -> Failure:
    return Failure(reason, message, heals=False)
