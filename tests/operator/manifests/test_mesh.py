"""What pods are given for a service mesh, and for a platform that chooses their user."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from embedserve_operator.kube.objects import Manifest
from embedserve_operator.settings import RenderSettings
from tests.operator.builders import SETTINGS, Cluster, hub_spec, resource
from tests.operator.cache_builders import cached

INBOUND = "traffic.sidecar.istio.io/excludeInboundPorts"
OUTBOUND = "traffic.sidecar.istio.io/excludeOutboundPorts"
LINKERD_INBOUND = "config.linkerd.io/skip-inbound-ports"
LINKERD_OUTBOUND = "config.linkerd.io/skip-outbound-ports"
VOLUME_SOURCE = {"model": {"source": {"volume": {"claimName": "models"}}}}
S3_SOURCE = {
    "model": {"source": {"s3": {"uri": "s3://models/minilm", "endpoint": "http://minio.storage.svc:9000"}}}
}


def serving_pod(spec: dict[str, Any], settings: RenderSettings) -> Manifest:
    children = Cluster(resource(spec), settings=settings).plan().children
    (deployment,) = [child for child in children if child["kind"] == "Deployment"]
    template: Manifest = deployment["spec"]["template"]
    return template


def job_pod(spec: dict[str, Any], settings: RenderSettings = SETTINGS) -> Manifest:
    (job,) = Cluster(resource(spec), settings=settings).applied().plan().jobs_to_create
    template: Manifest = job["spec"]["template"]
    return template


def read_mesh_annotations(template: Manifest) -> dict[str, str]:
    """The annotations that a mesh reads."""
    annotations = template["metadata"]["annotations"].items()
    return {key: value for key, value in annotations if "istio" in key or "linkerd" in key}


@pytest.mark.parametrize(
    ("mesh", "spec", "want"),
    [
        pytest.param(None, hub_spec(), {}, id="no mesh"),
        pytest.param("istio", hub_spec(), {INBOUND: "8081", OUTBOUND: "80"}, id="istio, a source by HTTP"),
        pytest.param("istio", S3_SOURCE, {INBOUND: "8081", OUTBOUND: "9000"}, id="istio, a bucket"),
        pytest.param("istio", VOLUME_SOURCE, {INBOUND: "8081"}, id="istio, nothing to fetch"),
        pytest.param("linkerd", hub_spec(), {LINKERD_INBOUND: "8081", LINKERD_OUTBOUND: "80"}, id="linkerd"),
        pytest.param(
            "istio",
            hub_spec(pod={"annotations": {INBOUND: "8081,9999"}}),
            {INBOUND: "8081,9999", OUTBOUND: "80"},
            id="what the user says counts",
        ),
    ],
)
def test_a_sidecar_leaves_alone_what_comes_without_a_certificate_of_the_mesh(
    mesh: Any, spec: dict[str, Any], want: dict[str, str]
) -> None:
    assert read_mesh_annotations(serving_pod(spec, replace(SETTINGS, mesh=mesh))) == want


def test_the_pods_of_a_job_get_no_sidecar_unless_the_user_asks_for_it() -> None:
    plain = job_pod(cached(pod={"annotations": {"team": "search"}}))
    assert plain["metadata"]["labels"]["sidecar.istio.io/inject"] == "false"
    assert plain["metadata"]["annotations"] == {"team": "search", "linkerd.io/inject": "disabled"}
    metadata = {
        "labels": {"sidecar.istio.io/inject": "true"},
        "annotations": {"linkerd.io/inject": "enabled"},
    }
    meshed = job_pod(cached(jobs=metadata))
    assert meshed["metadata"]["labels"]["sidecar.istio.io/inject"] == "true"
    assert meshed["metadata"]["annotations"] == {"linkerd.io/inject": "enabled"}


def test_what_is_for_jobs_alone_restarts_no_serving_pod() -> None:
    metadata = {"annotations": {"linkerd.io/inject": "enabled"}}
    assert serving_pod(hub_spec(), SETTINGS) == serving_pod(hub_spec(jobs=metadata), SETTINGS)


@pytest.mark.parametrize(
    ("run_as", "want"),
    [
        (65532, {"runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532}),
        (1000650000, {"runAsUser": 1000650000, "runAsGroup": 1000650000, "fsGroup": 1000650000}),
        (None, {}),
    ],
)
def test_pods_run_as_the_user_that_is_named_or_as_the_platform_chooses(
    run_as: int | None, want: dict[str, int]
) -> None:
    context = job_pod(cached(), replace(SETTINGS, run_as=run_as))["spec"]["securityContext"]
    assert {
        key: value for key, value in context.items() if isinstance(value, int) and value is not True
    } == want
    assert context["runAsNonRoot"] is True
