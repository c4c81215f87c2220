"""Hardware classes as data: where the pods of a class may run, on which image, and how they may be replaced.

Nodes are told apart by compute capability and architecture, never by the product name of feature discovery: that
changes with sharing and slicing. A pool without nodes has no compute capability yet; there the labels of the cloud say
which accelerators its nodes will have (`cloud_labels`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationError

from embedserve_operator.api.base import LabelValue, Model, describe_problems
from embedserve_operator.api.cloud_labels import CLOUD_LABELS
from embedserve_operator.api.pods import Toleration
from embedserve_operator.api.rules import Rule, matches
from embedserve_operator.errors import SettingsError

ARCHITECTURE = "kubernetes.io/arch"
SYSTEM = "kubernetes.io/os"
COMPUTE_MAJOR = "nvidia.com/gpu.compute.major"
COMPUTE_MINOR = "nvidia.com/gpu.compute.minor"
"""Labels of a node; the last two come from GPU feature discovery."""

Capability = Annotated[
    str, matches(r"^[0-9]+[.][0-9]+$", 'must be a compute capability in quotes, such as "9.0"')
]
Architecture = Literal["amd64", "arm64"]


class HardwareClass(Model):
    """The nodes and settings that a name in `spec.hardware.class` stands for."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.maxSurge + self.maxUnavailable > 0",
            message="maxSurge and maxUnavailable cannot both be 0: no pod could ever be replaced",
            check=lambda c: c.max_surge + c.max_unavailable > 0,
        ),
    )

    description: str = ""
    """Human-readable description of the class."""
    compute_capabilities: tuple[Capability, ...] = ()
    """Compute capabilities, one of which a node must have; none: accelerators do not matter."""
    accelerator_labels: dict[str, Annotated[tuple[LabelValue, ...], Field(min_length=1)]] = Field(
        default_factory=dict
    )
    """Labels with values, one of which does in place of a compute capability."""
    architectures: tuple[Architecture, ...] = ()
    """Architectures of the node; none: all that the image has."""
    node_labels: dict[str, LabelValue] = Field(default_factory=dict)
    """Further labels that a node must carry."""
    tolerations: tuple[Toleration, ...] = ()
    """Taints that the pods may be placed in spite of."""
    resource_name: str | None = None
    """Resource that stands for one accelerator."""
    runtime_class_name: str | None = None
    """RuntimeClass of the pods, where the cluster has it."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Precision when the resource says `auto`."""
    engine: Literal["auto", "onnx", "torch"] = "auto"
    """Engine when the resource says `auto`."""
    image: str = "cpu"
    """The name of one of the runtime's images."""
    cpus: Annotated[int, Field(ge=1)] | None = None
    """Whole CPUs that a pod requests when the resource says nothing about CPUs; where the class has accelerators, for
    each of them."""
    max_surge: Annotated[int, Field(ge=0)] = 1
    """Pods that a rolling update may run beyond the wanted number; 0 where no spare device can be assumed."""
    max_unavailable: Annotated[int, Field(ge=0)] = 0
    """Pods that a rolling update may miss."""


def _build_accelerator_class(
    name: str,
    description: str,
    *capabilities: str,
    cpus: int,
    precision: Literal["bfloat16", "float16"] = "bfloat16",
    architectures: tuple[Architecture, ...] = (),
) -> HardwareClass:
    return HardwareClass(
        description=description,
        compute_capabilities=capabilities,
        accelerator_labels=dict(CLOUD_LABELS.get(name, {})),
        architectures=architectures,
        tolerations=(Toleration(key="nvidia.com/gpu", operator="Exists"),),
        resource_name="nvidia.com/gpu",
        runtime_class_name="nvidia",
        precision=precision,
        engine="torch",
        image="cuda",
        cpus=cpus,
        max_surge=0,
        max_unavailable=1,
    )


CLASSES: Mapping[str, HardwareClass] = MappingProxyType(
    {
        "cpu": HardwareClass(description="Any CPU that the image runs on."),
        "cpu-x86": HardwareClass(description="x86-64 CPUs.", architectures=("amd64",), cpus=2),
        "cpu-arm64": HardwareClass(description="ARM64 CPUs.", architectures=("arm64",), cpus=2),
        # CPUs for the processes that parse, tokenize and encode for the card: at 50 tokens a text one of them feeds an
        # H100 to 45 %, six to 99 %. Slower cards need fewer, and common machines have 4 CPUs beside one of them, not
        # all of which pods can have.
        # No bfloat16, and no FlashAttention; torch's wheels for ARM have no code for it.
        "turing": _build_accelerator_class(
            "turing", "T4, RTX 20", "7.5", cpus=2, precision="float16", architectures=("amd64",)
        ),
        "ampere": _build_accelerator_class(
            "ampere", "A100, A30, A10, RTX 30, Orin", "8.0", "8.6", "8.7", cpus=3
        ),
        "ada": _build_accelerator_class("ada", "L4, L40S, RTX 40", "8.9", cpus=3),
        "hopper": _build_accelerator_class("hopper", "H100, H200, GH200", "9.0", cpus=8),
        "blackwell": _build_accelerator_class(
            "blackwell", "B200, GB200, B300, GB300", "10.0", "10.3", cpus=8
        ),
        "blackwell-rtx": _build_accelerator_class("blackwell-rtx", "RTX PRO, RTX 50", "12.0", cpus=3),
        "dgx-spark": _build_accelerator_class("dgx-spark", "GB10", "12.1", cpus=8, architectures=("arm64",)),
    }
)
"""The classes that are always there."""


def merge_classes(changes: Mapping[str, Any]) -> Mapping[str, HardwareClass]:
    """Return the classes with further ones, or with other fields of existing ones.

    Raises SettingsError naming the class and the field.
    """
    classes = dict(CLASSES)
    for name, fields in changes.items():
        existing = classes.get(name)
        before = existing.as_wire() if existing is not None else {}
        try:
            if "computeCapabilities" in (fields or {}):
                # They may be fewer than the labels of the built-in class stand for.
                before.pop("acceleratorLabels", None)
            classes[name] = HardwareClass.model_validate({**before, **(fields or {})})
        except (ValidationError, TypeError) as error:
            raise SettingsError(f"hardware class {name}: {_describe_errors(error)}") from error
    return MappingProxyType(classes)


def _describe_errors(error: ValidationError | TypeError) -> str:
    if isinstance(error, TypeError):
        return "must be a mapping of fields"
    return describe_problems(error, root="")
