"""`spec.cache` and `spec.onnx`: where models are kept between pods, and in which form."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from embedserve_operator.api.base import Model, ObjectName, PositiveQuantity
from embedserve_operator.api.rules import ListSet, Rule, exactly_one

OnnxOutput = Literal["last_hidden_state", "sentence_embedding", "logits"]
AccessMode = Literal["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"]


class CacheVolume(Model):
    """A volume of this service's own: a PersistentVolumeClaim of the resource's name with `-models`."""

    storage_class_name: ObjectName | None = None
    """StorageClass; without it the cluster's default."""
    size: PositiveQuantity
    """Room for the models, for example 20Gi: about twice the model's files, and as much again for conversion."""
    access_modes: Annotated[
        tuple[AccessMode, ...],
        Field(min_length=1, max_length=2),
        ListSet(),
    ] = ("ReadWriteOnce",)
    """ReadWriteOnce keeps all pods of the service on one node, ReadWriteMany does not. ReadWriteOncePod allows one
    pod."""
    when_deleted: Literal["Retain", "Delete"] = "Retain"
    """Retain leaves the claim, and so the models, where the resource is deleted or its cache changed; a resource of
    the same name finds it again."""


class Cache(Model):
    """Volume that models are kept on: exactly one of `volume` and `claimName`."""

    rules: ClassVar[tuple[Rule, ...]] = (
        exactly_one(
            ("volume", "claimName"),
            ("volume", "claim_name"),
            "give exactly one of volume and claimName; remove cache to let each pod fetch for itself",
        ),
        Rule(
            cel="!self.readOnly || has(self.claimName)",
            message="readOnly needs claimName: a volume that was just made holds no model",
            check=lambda cache: not cache.read_only or cache.claim_name is not None,
        ),
    )

    volume: CacheVolume | None = None
    """A volume of this service's own."""
    claim_name: ObjectName | None = None
    """A PersistentVolumeClaim in the namespace of the resource, which other services may use as well."""
    read_only: bool = False
    """The claim holds a store with the model already, filled by `embedserve fetch`: nothing is fetched or written."""


def _is_parity_floor(value: float) -> bool:
    return 0 <= value <= 1


ParityFloor = Annotated[
    float,
    Rule(
        cel="double(self) >= 0.0 && double(self) <= 1.0",
        message="must be between 0 and 1; leave it out to take the runtime's default",
        check=_is_parity_floor,
    ),
]


class Parity(Model):
    """Accuracy against plain float32 that a converted variant must have to be served."""

    min_mean_cosine: ParityFloor | None = None
    """Least mean cosine of its vectors to float32's; without it 0.998."""
    min_cosine: ParityFloor | None = None
    """Least cosine of any of its vectors to float32's; without it 0.99."""
    min_rank_agreement: ParityFloor | None = None
    """Least rank correlation of its scores with float32's; without it 0.99."""


class OnnxConversion(Model):
    """Conversion into an ONNX artifact in the cache, measured before it is served."""

    convert: Literal["Never", "IfNeeded", "Always"] = "IfNeeded"
    """IfNeeded converts once where there is a cache to write to and the model runs on ONNX Runtime, and serves the
    weights as they are where conversion fails. Always insists. Never writes the graph at each start."""
    precision: Literal["auto", "float32", "float16", "int8"] = "auto"
    """Variant to make and try beside float32; `auto` tries all that can be faster on the node's processor. Served is
    the fastest that passes, unless `model.precision` names one."""
    outputs: (
        Annotated[
            tuple[OnnxOutput, ...],
            Field(min_length=1, max_length=3),
            ListSet(),
        ]
        | None
    ) = None
    """Makes of each published variant also an ONNX file for other programs, `standard.onnx`, with the usual padded
    inputs and these outputs; `logits` are those of a reranker or classifier, or of a sparse head's tokens. What the
    model does not give is refused, with what it gives."""
    parity: Parity | None = None
    """Accuracy that a variant must have. A variant below it is not served; float32 is."""
