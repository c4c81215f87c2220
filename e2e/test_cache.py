"""Models on volumes: fetched once, converted once, served from the volume without a hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster.kubectl import Kubectl, deployment_available
from e2e.cluster.polling import wait_until
from e2e.conftest import MakeService
from e2e.demo.partners import HUB_NAMESPACE, HUB_URL, ClientPod
from e2e.hub import samples
from e2e.services import TIMEOUT_S, Object, Service, condition, hub_spec, is_serving

CLAIM = "store"
INT8 = {"precision": "int8"}
WEIGHTS = "model.safetensors"
GET = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1]).read().decode())"
TEXTS = ("One download is enough.", "Eine Übersetzung auch.")


@pytest.fixture(scope="module")
def shared(kubectl: Kubectl, namespace: str) -> str:
    """A claim that several services use."""
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": CLAIM, "namespace": namespace},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    kubectl.apply(json.dumps(claim))
    return CLAIM


@pytest.fixture
def no_hub(kubectl: Kubectl) -> Iterator[None]:
    """While the hub is away."""
    _scale_hub(kubectl, 0)
    yield
    _scale_hub(kubectl, 1)


def _scale_hub(kubectl: Kubectl, replicas: int) -> None:
    where = ("deployment", "hub", "--namespace", HUB_NAMESPACE)
    kubectl("scale", *where, f"--replicas={replicas}")
    if replicas:
        kubectl.wait_for("the hub is back", where, deployment_available, timeout_s=TIMEOUT_S)
        return
    pods = ("pods", "--namespace", HUB_NAMESPACE, "--selector", "app=hub")
    wait_until("the hub is gone", lambda: not (kubectl.get(*pods) or {}).get("items"), timeout_s=TIMEOUT_S)


def got(client: ClientPod, url: str) -> Any:
    """Return what a server inside of the cluster answers."""
    return json.loads(client.run("python3", "-c", GET, url))


def fetched_bytes(client: ClientPod) -> int:
    """Bytes of weights that the hub has sent since it was started."""
    requests = got(client, f"{HUB_URL}/_requests")
    return sum(
        request["sent_bytes"]
        for request in requests
        if request["path"].endswith(WEIGHTS) and request["method"] == "GET"
    )


def jobs(kubectl: Kubectl, namespace: str, task: str) -> list[Object]:
    words = ("jobs", "--namespace", namespace, "--selector", f"app.kubernetes.io/component={task}")
    return list((kubectl.get(*words) or {}).get("items", []))


def on_store(shared: str, **more: Any) -> Object:
    return hub_spec(cache={"claimName": shared}, onnx=INT8, **more)


def test_two_services_on_one_claim_fetch_once_and_convert_once(
    service: MakeService, shared: str, kubectl: Kubectl, client: ClientPod, namespace: str
) -> None:
    before = fetched_bytes(client)
    first, second = service("first"), service("second")
    first.apply(on_store(shared, replicas=2, model={"precision": "int8"}, servedModelName="first"))
    second.apply(on_store(shared, servedModelName="second"))
    status = first.wait_serving()["status"]
    second_status = second.wait_serving()["status"]

    size = (samples.model_folder() / WEIGHTS).stat().st_size
    assert fetched_bytes(client) - before == size, "three pods of two services, one download"
    assert (len(jobs(kubectl, namespace, "fetch")), len(jobs(kubectl, namespace, "convert"))) == (1, 1)
    assert status["fetch"]["digest"] == second_status["fetch"]["digest"] == status["model"]["digest"]
    assert status["conversion"]["artifact"] == second_status["conversion"]["artifact"]
    assert status["vectorSpace"]["id"] == second_status["vectorSpace"]["id"]

    (int8,) = [variant for variant in status["conversion"]["variants"] if variant["precision"] == "int8"]
    assert int8["published"] is True
    assert 0.99 <= int8["minCosine"] < 1
    assert int8["tokensPerSecond"] > 0
    served = first.embed(*TEXTS)
    assert all(len(vector) == 384 for vector in served)
    assert precision_of(first, client) == "int8", "it is what answers"


def test_pods_ask_for_the_memory_that_was_planned_and_serve_all_that_was_wanted_in_it(
    service: MakeService, shared: str, client: ClientPod
) -> None:
    planned = service("planned")
    planned.apply(on_store(shared, servedModelName="planned"))
    status = planned.wait_serving()["status"]
    (pod,) = planned.pods()
    (container,) = [candidate for candidate in pod["spec"]["containers"] if candidate["name"] == "runtime"]
    amount = container["resources"]["limits"]["memory"]
    assert container["resources"]["requests"]["memory"] == amount
    memory = got(client, f"{status['endpoint']['url']}/info")["memory"]
    assert memory["limit_bytes"] == int(amount.removesuffix("Mi")) * 2**20
    assert memory["planned_bytes"] <= memory["limit_bytes"]
    assert memory["lowered"] == []


def precision_of(service: Service, client: ClientPod) -> str:
    """Return what the service says of how it runs its model."""
    info = got(client, f"{service.get()['status']['endpoint']['url']}/info")
    return str(info["model_dtype"])


def test_restarts_and_further_pods_need_no_hub(
    service: MakeService, shared: str, kubectl: Kubectl, namespace: str, no_hub: None
) -> None:
    first = service("first")
    ended = {pod["metadata"]["name"] for pod in first.children("pods")}
    kubectl("delete", "pods", "--namespace", namespace, "--selector", first.selector, "--wait=false")
    first.apply(on_store(shared, replicas=3, model={"precision": "int8"}, servedModelName="first"))
    resource = first.wait_for(
        "three new pods serve",
        lambda resource: (
            is_serving(resource)
            and resource["status"]["readyReplicas"] == 3
            and not ended & {pod["metadata"]["name"] for pod in first.pods()}
        ),
    )
    assert resource["status"]["fetch"]["state"] == "Succeeded"
    assert len(first.embed(*TEXTS)) == 2


def test_a_fetch_waits_for_the_hub_and_says_so(
    service: MakeService, kubectl: Kubectl, namespace: str
) -> None:
    late = service("late")
    _scale_hub(kubectl, 0)
    try:
        late.apply(hub_spec(cache={"volume": {"size": "1Gi", "whenDeleted": "Delete"}}))
        late.wait_condition("Reconciling", "True", "SourceUnavailable")
    finally:
        _scale_hub(kubectl, 1)
    late.wait_serving()
    claim = ("persistentvolumeclaim", "late-models", "--namespace", namespace)
    assert kubectl.get(*claim) is not None
    late.delete()
    wait_until("its volume goes with it", lambda: kubectl.get(*claim) is None, timeout_s=TIMEOUT_S)


def test_a_variant_below_the_floor_is_not_served(
    service: MakeService, kubectl: Kubectl, client: ClientPod, namespace: str
) -> None:
    strict = service("strict")
    floor = {**INT8, "parity": {"minCosine": 1}}
    strict.apply(hub_spec(cache={"volume": {"size": "1Gi"}}, onnx=floor, model={"precision": "int8"}))
    status = strict.wait_serving()["status"]
    conversion = status["conversion"]
    assert conversion["chosen"] == "float32"
    assert conversion["fallback"].startswith("float32 is served, not int8: ")
    assert precision_of(strict, client) == "float32"
    assert len(strict.embed(*TEXTS)) == 2
    strict.delete()
    claim = kubectl.get("persistentvolumeclaim", "strict-models", "--namespace", namespace)
    assert claim is not None, "the models stay, unless told otherwise"


def test_a_repository_that_does_not_exist_is_told_while_nothing_is_made(service: MakeService) -> None:
    missing = service("missing")
    missing.apply(hub_spec("acme/missing", cache={"volume": {"size": "1Gi", "whenDeleted": "Delete"}}))
    assert "acme/missing" in missing.wait_condition("Stalled", "True", "ModelNotFound")["message"]
    assert missing.children("deployments") == []
    ready = condition(missing.get(), "Ready")
    assert ready is not None
    assert ready["status"] == "False"
    missing.delete()


def test_a_claim_that_an_administrator_enlarges_stays_so_large(
    service: MakeService, kubectl: Kubectl, namespace: str
) -> None:
    growing = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "growing"},
        "provisioner": "rancher.io/local-path",
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowVolumeExpansion": True,
    }
    kubectl.apply(json.dumps(growing))
    enlarged = service("enlarged")

    def spec(size: str, mark: str) -> Object:
        volume = {"size": size, "storageClassName": "growing", "whenDeleted": "Delete"}
        return hub_spec(cache={"volume": volume}, service={"annotations": {"mark": mark}})

    def size() -> str:
        return str(enlarged.child("persistentvolumeclaims")["spec"]["resources"]["requests"]["storage"])

    enlarged.apply(spec("1Gi", "first"))
    enlarged.wait_serving()
    name = enlarged.child("persistentvolumeclaims")["metadata"]["name"]
    patch = json.dumps({"spec": {"resources": {"requests": {"storage": "2048Mi"}}}})
    kubectl("patch", "persistentvolumeclaim", name, "--namespace", namespace, "--patch", patch)
    for mark in ("second", "third"):
        enlarged.apply(spec("1Gi", mark))
        resource = enlarged.wait_serving()
        assert {reported["reason"] for reported in resource["status"]["conditions"]}.isdisjoint(
            {"FieldConflict", "ChildRefused"}
        )
        wait_until(
            f"the Service is marked {mark}",
            lambda mark=mark: (
                enlarged.child_named("service", "enlarged")["metadata"]["annotations"].get("mark") == mark
            ),  # type: ignore[misc]
            timeout_s=TIMEOUT_S,
        )
        assert size() in ("2048Mi", "2Gi")
    enlarged.apply(spec("3Gi", "third"))
    wait_until("the manifest enlarges it further", lambda: size() == "3Gi", timeout_s=TIMEOUT_S)
    enlarged.wait_serving()
    enlarged.delete()
    kubectl("delete", "storageclass", "growing")
