"""Models of no family: fetched by the image that will serve, exported by the one with torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from embedserve_operator.commands.render import format_yaml
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.kube.views.workloads import Job
from embedserve_operator.observe.pods import read_mounted_config_map
from embedserve_operator.settings import RenderSettings, RuntimeImage
from tests.operator.builders import REPORT, SETTINGS, Cluster, hub_spec, resource
from tests.operator.cache_builders import CONVERSION, cached, failed, running, serving, started, succeeded
from tests.support.differences import find_differences

NEEDS_EXPORT = {key: REPORT[key] for key in ("source", "revision", "digest", "sizeBytes")} | {
    "needsExport": True
}
SPACE = "vs1-aaaaaaaaaaaaaaaaaaaa"
EXPORTED = {
    "artifact": "onnx-5678",
    "vectorSpace": SPACE,
    "dimensions": 256,
    "outputs": ["dense", "hidden"],
    "chosen": "float32",
    "variants": [{"precision": "float32", "published": True, "tokensPerSecond": 100.0}],
}
CPU_ALONE = replace(SETTINGS, images={"cpu": SETTINGS.images["cpu"]})


def fetched(settings: RenderSettings = SETTINGS, **more: Any) -> Cluster:
    """After the fetch of a model that no family fits."""
    cluster = replace(Cluster(resource(cached(**{"onnx": {}, **more}))), settings=settings)
    return started(succeeded(started(cluster), {"model": NEEDS_EXPORT}))


def image_of(pods: Manifest) -> str:
    return str(pods["spec"]["template"]["spec"]["containers"][0]["image"])


def test_the_conversion_runs_where_torch_is_and_the_pods_by_the_image_of_their_class() -> None:
    cluster = fetched()
    job = running(cluster)
    assert job["metadata"]["name"].startswith("docs-convert-")
    assert image_of(job) == "embedserve-runtime:test-cuda"
    usual = running(started(succeeded(started(Cluster(resource(cached(onnx={})))))))
    assert find_differences(format_yaml([usual]), format_yaml([job])) == {
        "Job convert.spec.template.spec.containers[convert].image": "embedserve-runtime:test-cuda"
    }
    exported = started(succeeded(cluster, {"conversion": EXPORTED}))
    (deployment,) = [child for child in exported.children if child["kind"] == "Deployment"]
    assert image_of(deployment) == "embedserve-runtime:test-cpu"


def test_an_image_that_the_manifest_names_serves_and_does_not_export() -> None:
    pinned = "embedserve-runtime:pinned-cpu"
    cluster = fetched(runtimeImage=pinned)
    assert image_of(running(cluster)) == "embedserve-runtime:test-cuda"
    exported = started(succeeded(cluster, {"conversion": EXPORTED}))
    (deployment,) = [child for child in exported.children if child["kind"] == "Deployment"]
    assert image_of(deployment) == pinned


def test_a_model_of_a_family_is_converted_by_the_image_that_will_serve() -> None:
    cluster = started(succeeded(started(Cluster(resource(cached(onnx={}))))))
    assert image_of(running(cluster)) == "embedserve-runtime:test-cpu"


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        pytest.param(cached(onnx={}), True, id="conversion"),
        pytest.param(cached(), None, id="none asked for"),
        pytest.param(cached(onnx={"convert": "Never"}), None, id="none wanted"),
        pytest.param(cached(onnx={}, hardware={"class": "hopper"}), None, id="another engine"),
    ],
)
def test_weights_that_only_torch_can_use_are_fetched_where_a_conversion_follows(
    spec: dict[str, Any], want: bool | None
) -> None:
    cluster = started(Cluster(resource(spec)))
    name = read_mounted_config_map(Job.parse(running(cluster)).spec.template.spec)
    (config,) = [child for child in cluster.children if child["metadata"]["name"] == name]
    assert yaml.safe_load(config["data"]["runtime.yaml"])["model"].get("export_elsewhere") is want


def test_what_only_the_export_can_say_is_published_and_labels_the_pods() -> None:
    cluster = started(succeeded(fetched(), {"conversion": EXPORTED}))
    status = cluster.status()
    assert (status.fetch is not None and status.fetch.needs_export) is True
    assert status.vector_space is not None
    space = status.vector_space
    assert (space.id, space.dimensions, space.outputs) == (SPACE, 256, ("dense", "hidden"))
    (deployment,) = [child for child in cluster.children if child["kind"] == "Deployment"]
    assert SPACE in deployment["metadata"]["labels"].values()


def test_that_an_export_has_no_other_precision_than_its_own_is_said_where_one_is_named() -> None:
    named = started(succeeded(fetched(onnx={"precision": "int8"}), {"conversion": EXPORTED}))
    plain = started(succeeded(fetched(), {"conversion": EXPORTED}))
    statuses = [variant.status().conversion for variant in (named, plain)]
    assert [status and status.fallback for status in statuses] == [
        "float32 is served, not int8: torch exports float32 alone",
        None,
    ]


def test_a_service_with_an_exported_model_comes_to_rest_when_its_jobs_are_gone() -> None:
    cluster = started(succeeded(fetched(), {"conversion": EXPORTED})).rolled_out().applied().published()
    cluster = started(replace(cluster, jobs=(), job_pods=()))
    assert set(cluster.conditions()) == {"Ready"}
    assert cluster.plan().jobs_to_create == ()
    assert cluster.applied() == cluster


def test_an_export_that_fails_is_not_passed_over() -> None:
    cluster = started(failed(fetched(), "UnsupportedArchitecture", retryable=False))
    assert cluster.names("Deployment") == []
    assert cluster.conditions()["Stalled"].reason == "UnsupportedArchitecture"
    family = started(failed(started(succeeded(started(Cluster(resource(cached(onnx={})))))), retryable=False))
    assert len(family.names("Deployment")) == 1


@pytest.mark.parametrize(
    ("settings", "spec", "reason", "advice"),
    [
        pytest.param(CPU_ALONE, {}, "ExporterMissing", "set runtime.cudaImage", id="no image with torch"),
        pytest.param(
            replace(
                SETTINGS,
                images={**SETTINGS.images, "cuda": RuntimeImage("runtime:cuda", architectures=("amd64",))},
            ),
            {"hardware": {"class": "cpu-arm64"}},
            "ImageLacksArchitecture",
            "which has only amd64, where spec.hardware.class cpu-arm64 runs",
            id="an image of another architecture",
        ),
    ],
)
def test_where_nothing_can_export_it_is_said_what_to_do(
    settings: RenderSettings, spec: dict[str, Any], reason: str, advice: str
) -> None:
    cluster = fetched(settings, **spec)
    stalled = cluster.conditions()["Stalled"]
    assert stalled.reason == reason
    assert advice in stalled.message
    assert not [job for job in cluster.jobs if "status" not in job]
    assert cluster.names("Deployment") == []


def test_what_serves_goes_on_while_nothing_can_export_another_model() -> None:
    before = replace(serving(cached(onnx={})), settings=CPU_ALONE)
    changed = started(before.changed(cached(onnx={}, model={"refresh": "again"})))
    cluster = started(succeeded(changed, {"model": NEEDS_EXPORT}))
    assert cluster.names("Deployment") == before.names("Deployment")
    assert cluster.conditions()["Ready"].status == "True"
    assert cluster.conditions()["Stalled"].reason == "ExporterMissing"


def test_a_class_whose_image_there_is_not_is_refused() -> None:
    cluster = replace(Cluster(resource(hub_spec(hardware={"class": "hopper"}))), settings=CPU_ALONE)
    stalled = cluster.conditions()["Stalled"]
    assert stalled.reason == "ImageNotConfigured"
    assert "set runtime.cudaImage" in stalled.message
    assert cluster.plan().children == ()


def test_models_of_a_family_need_no_image_with_torch() -> None:
    cluster = replace(Cluster(resource(cached(onnx={}))), settings=CPU_ALONE)
    converted = started(succeeded(started(succeeded(started(cluster))), {"conversion": CONVERSION}))
    assert len(converted.names("Deployment")) == 1
