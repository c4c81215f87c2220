"""What the containers of pods and Jobs ask for, so that neither a node nor a namespace's quota is taken by surprise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from embedserve_operator.api.quantities import MIB
from tests.operator.builders import REPORT, Cluster, hub_spec, resource
from tests.operator.cache_builders import cached, claim, running, started, succeeded, with_claim

PLANNED = {
    **REPORT,
    "memory": {
        "fixedBytes": 1_000 * MIB,
        "loadingBytes": 100 * MIB,
        "batchBytes": 16 * MIB,
        "tokenBytes": 20_000,
        "scoreBytes": 0,
        "longTokenBytes": 50_000,
        "resultNumbers": 384,
        "maxLength": 8_192,
    },
}
AMOUNTS = ("memory", "ephemeral-storage")
SPECS: dict[str, dict[str, Any]] = {
    "without a cache": hub_spec(),
    "with a cache": cached(),
    "with a conversion": cached(onnx={"convert": "IfNeeded"}),
    "on a filled volume": hub_spec(cache={"claimName": "models", "readOnly": True}),
    "with resources for CPUs": cached(resources={"limits": {"cpu": 4}}),
}


def known(spec: dict[str, Any]) -> Cluster:
    """The cluster once the size of the model is known, and its pods are made for it."""
    claims = [claim("ReadWriteMany")] if "claimName" in spec.get("cache", {}) else []
    cluster = started(with_claim(spec, *claims))
    for _ in range(2):
        if any("status" not in job for job in cluster.jobs):
            job = running(cluster)
            is_fetch = job["metadata"]["labels"]["app.kubernetes.io/component"] == "fetch"
            cluster = started(succeeded(cluster, {"model": PLANNED} if is_fetch else None))
    cluster = cluster.rolled_out(report=PLANNED).applied().published()
    return started(cluster.changed({**spec, "batching": {"maxBatchTokens": 2_048}}))


def list_pod_specs(cluster: Cluster) -> Iterator[dict[str, Any]]:
    for manifest in (*cluster.children, *cluster.jobs):
        if manifest["kind"] in ("Deployment", "Job"):
            yield manifest["spec"]["template"]["spec"]


def list_containers(cluster: Cluster) -> Iterator[dict[str, Any]]:
    for pod in list_pod_specs(cluster):
        yield from (*pod.get("initContainers", []), *pod["containers"])


def find_volume(cluster: Cluster, name: str) -> dict[str, Any]:
    (deployment,) = [child for child in cluster.children if child["kind"] == "Deployment"]
    volumes = deployment["spec"]["template"]["spec"]["volumes"]
    (volume,) = [volume for volume in volumes if volume["name"] == name]
    found: dict[str, Any] = volume
    return found


def find_container(cluster: Cluster, name: str) -> dict[str, Any]:
    *_, found = [container for container in list_containers(cluster) if container["name"] == name]
    return found


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_quota_on_memory_and_storage_admits_every_container_of_a_known_model(spec: dict[str, Any]) -> None:
    """Such a quota admits no pod with a container that does not say how much it requests and may take."""
    cluster = known(spec)
    containers = list(list_containers(cluster))
    assert containers
    for container in containers:
        for kind in ("requests", "limits"):
            named = container["resources"][kind]
            assert {name for name in AMOUNTS if name in named} == set(AMOUNTS), container["name"]


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_volumes_on_the_disk_of_a_node_have_a_size_that_the_pod_asks_for(spec: dict[str, Any]) -> None:
    for pod in list_pod_specs(known(spec)):
        sizes = [volume["emptyDir"]["sizeLimit"] for volume in pod["volumes"] if "emptyDir" in volume]
        assert sizes
        requested = pod["containers"][0]["resources"]["requests"]["ephemeral-storage"]
        assert _mib(requested) == sum(map(_mib, sizes)) + 128, "and as much for logs"


def _mib(quantity: str) -> int:
    return int(quantity.removesuffix("Mi"))


def test_a_fetch_has_the_same_memory_for_every_model_and_a_conversion_has_what_its_model_needs() -> None:
    cluster = known(SPECS["with a conversion"])
    assert find_container(cluster, "fetch")["resources"]["limits"]["memory"] == "512Mi"
    # 1.5 times 1,000 MiB, and a batch of 2,048 tokens that is one text: 16 MiB and 137 MiB.
    assert find_container(cluster, "convert")["resources"]["limits"]["memory"] == "1664Mi"


def test_an_archive_has_room_beside_what_is_in_it() -> None:
    archive = {"http": {"url": "https://models.example/minilm.tar.gz", "sha256": "0" * 64}}
    sizes = [
        find_volume(known({"model": {"source": source}}), "models")["emptyDir"]["sizeLimit"]
        for source in (archive, hub_spec()["model"]["source"])
    ]
    assert sizes == ["320Mi", "128Mi"]


def test_a_model_that_is_mounted_takes_no_room_of_the_node() -> None:
    spec = {"model": {"source": {"volume": {"claimName": "ours", "path": "minilm"}}}}
    assert find_volume(known(spec), "models")["emptyDir"]["sizeLimit"] == "256Mi"


def test_what_the_user_says_of_storage_counts_for_the_whole_pod() -> None:
    resources = {"limits": {"ephemeral-storage": "50Gi"}}
    cluster = known(hub_spec(resources=resources))
    for container in list_containers(cluster):
        amounts = container["resources"]
        assert amounts["limits"]["ephemeral-storage"] == "50Gi"
        assert "ephemeral-storage" not in amounts["requests"]
    assert find_volume(cluster, "models")["emptyDir"] == {}
    assert find_volume(cluster, "tmp")["emptyDir"] == {}


@pytest.mark.parametrize(
    ("volume", "requested", "limited"),
    [
        ({"sizeLimit": "1Gi"}, "2560Mi", "2560Mi"),
        ({}, "1536Mi", None),
        ({"medium": "Memory"}, "1536Mi", "1536Mi"),
    ],
    ids=["with a size", "without a size", "in memory"],
)
def test_volumes_of_the_user_count_against_the_storage_of_the_pod(
    volume: dict[str, Any], requested: str, limited: str | None
) -> None:
    pod = {
        "volumes": [{"name": "scratch", "emptyDir": volume}],
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    }
    amounts = find_container(known(hub_spec(pod=pod)), "runtime")["resources"]
    assert amounts["requests"]["ephemeral-storage"] == requested
    assert amounts["limits"].get("ephemeral-storage") == limited


def test_torch_on_a_cpu_gets_no_limit_by_a_plan_that_is_not_about_it() -> None:
    amounts = find_container(known(cached(engine="torch")), "runtime")["resources"]
    assert amounts["requests"]["memory"] == "448Mi"
    assert "memory" not in amounts["limits"]


def test_nothing_is_made_up_about_the_storage_of_a_model_that_is_not_known() -> None:
    cluster = Cluster(resource(hub_spec())).applied()
    assert find_volume(cluster, "models")["emptyDir"] == {}
    assert "ephemeral-storage" not in str(list(list_containers(cluster)))
