"""Hardware classes as data, and what a spec may not ask of them."""

from __future__ import annotations

from typing import Any

import pytest

from embedserve_operator.api.hardware import CLASSES, merge_classes
from embedserve_operator.errors import SettingsError
from embedserve_operator.settings import RenderSettings, RuntimeImage
from tests.operator.builders import SETTINGS, Cluster, hub_spec, resource

IMAGES = SETTINGS.images


def test_a_change_of_one_field_keeps_the_others() -> None:
    changed = merge_classes({"hopper": {"maxSurge": 1}})["hopper"]
    assert changed.max_surge == 1
    assert changed.compute_capabilities == CLASSES["hopper"].compute_capabilities


@pytest.mark.parametrize(
    ("changes", "want"),
    [
        pytest.param(
            {"x": {"acceleratorLabels": {"pool": []}}}, "acceleratorLabels", id="a label without values"
        ),
        pytest.param({"x": {"gpu": 1}}, "hardware class x: gpu: Extra inputs", id="an unknown field"),
        pytest.param({"x": {"computeCapabilities": [9]}}, "computeCapabilities", id="a number for text"),
        pytest.param({"x": {"maxSurge": 0}}, "cannot both be 0", id="no way to replace a pod"),
        pytest.param({"x": {"cpus": 0}}, "cpus", id="no CPU"),
        pytest.param({"x": "fast"}, "must be a mapping of fields", id="no mapping"),
        pytest.param({"x": {"architectures": ["riscv64"]}}, "architectures", id="an unknown architecture"),
    ],
)
def test_a_class_that_makes_no_sense_is_refused_by_name(changes: dict[str, Any], want: str) -> None:
    with pytest.raises(SettingsError, match="hardware class x") as caught:
        merge_classes(changes)
    assert want in str(caught.value)


def test_a_class_with_an_image_that_is_not_there_is_refused_at_the_start() -> None:
    classes = merge_classes({"x": {"image": "rocm"}})
    with pytest.raises(SettingsError, match="names the image rocm; there are: cpu, cuda"):
        RenderSettings(images=IMAGES, classes=classes)


REFUSED = [
    pytest.param(
        hub_spec(hardware={"class": "quantum"}), "UnknownHardwareClass", "there are: ada,", id="class"
    ),
    pytest.param(hub_spec(hardware={"count": 2}), "NoAccelerators", "class cpu has no accel", id="count"),
    pytest.param(
        hub_spec(hardware={"class": "ada"}, resources={"limits": {"nvidia.com/gpu": 2}}),
        "ResourcesConflict",
        "use spec.hardware.count instead",
        id="accelerators among the resources",
    ),
    pytest.param(
        hub_spec(hardware={"class": "ampere"}, model={"precision": "fp8"}),
        "PrecisionUnsupported",
        "of compute capability 8.9 or higher, and class ampere has compute capability 8.0, 8.6, 8.7",
        id="fp8 before Ada",
    ),
    pytest.param(
        hub_spec(hardware={"class": "turing"}, model={"precision": "int8"}, onnx={}),
        "PrecisionUnsupported",
        "int8 needs an accelerator of compute capability 8.0 or higher",
        id="int8 on Turing, which the conversion is not for",
    ),
    pytest.param(
        hub_spec(hardware={"class": "hopper"}, model={"precision": "int8"}, engine="onnx"),
        "PrecisionUnsupported",
        "needs the torch engine, but the engine is onnx; add onnx, which converts the model",
        id="int8 of the other engine",
    ),
]


@pytest.mark.parametrize(("spec", "reason", "words"), REFUSED)
def test_what_cannot_be_is_refused_with_a_reason(spec: dict[str, Any], reason: str, words: str) -> None:
    cluster = Cluster(resource(spec))
    plan, by_type = cluster.plan(), cluster.conditions()
    assert (plan.children, plan.prune) == ((), ())
    assert by_type["Stalled"].reason == by_type["Ready"].reason == reason
    assert words in by_type["Stalled"].message


def test_an_image_without_the_architecture_of_the_class_is_refused() -> None:
    settings = RenderSettings(
        images={**IMAGES, "cuda": RuntimeImage("cuda:1", architectures=("amd64",))}, classes=CLASSES
    )
    cluster = Cluster(resource(hub_spec(hardware={"class": "dgx-spark"})), settings=settings)
    stalled = cluster.conditions()["Stalled"]
    assert stalled.reason == "ImageLacksArchitecture"
    assert "needs arm64, and the image cuda:1 has only amd64" in stalled.message


def test_a_refused_change_takes_nothing_away() -> None:
    serving = Cluster().applied().rolled_out().published()
    refused = serving.changed(hub_spec(hardware={"class": "quantum"}))
    conditions = refused.conditions()
    assert (conditions["Ready"].status, conditions["Stalled"].reason) == ("True", "UnknownHardwareClass")
    assert refused.applied().children == serving.children


@pytest.mark.parametrize(
    ("hardware", "model", "want"),
    [
        pytest.param("turing", {}, {"kind": "torch", "precision": "float16"}, id="the class says"),
        pytest.param(
            "hopper", {"precision": "float32"}, {"kind": "torch", "precision": "float32"}, id="user"
        ),
        pytest.param("cpu", {}, None, id="nobody says"),
        pytest.param("ada", {"precision": "fp8"}, {"kind": "torch", "precision": "fp8"}, id="fp8"),
        pytest.param("ampere", {"precision": "int8"}, {"kind": "torch", "precision": "int8"}, id="int8"),
    ],
)
def test_precision_and_engine_come_from_the_class_unless_the_user_says(
    hardware: str, model: dict[str, Any], want: Any
) -> None:
    import yaml

    children = Cluster(resource(hub_spec(hardware={"class": hardware}, model=model))).plan().children
    config = yaml.safe_load(children[0]["data"]["runtime.yaml"])
    assert config.get("engine") == want


def test_capabilities_of_ones_own_take_the_place_of_the_clouds_labels_too() -> None:
    """The labels of class ampere stand for the A10 as well."""
    a100 = merge_classes({"ampere": {"computeCapabilities": ["8.0"]}})["ampere"]
    assert (a100.compute_capabilities, a100.accelerator_labels) == (("8.0",), {})
    labels = {"cloud.google.com/gke-accelerator": ("nvidia-tesla-a100",)}
    both = merge_classes({"ampere": {"computeCapabilities": ["8.0"], "acceleratorLabels": labels}})["ampere"]
    assert both.accelerator_labels == labels
    surging = merge_classes({"ampere": {"maxSurge": 1}})["ampere"]
    assert surging.accelerator_labels == CLASSES["ampere"].accelerator_labels
