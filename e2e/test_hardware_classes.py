"""Each class's pods land on the right one of a set of nodes, from Turing to DGX Spark; what fits none says why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.kubectl import Kubectl
from e2e.cluster.kwok import fake_nodes
from e2e.cluster.lifecycle import Cluster
from e2e.conftest import MakeService
from e2e.services import Object, Service, condition, hub_spec

NODES = Path(__file__).parents[1] / "tests" / "operator" / "nodes.yaml"
RIGHT = {
    "cpu-x86": {"plain"},
    "turing": {"t4"},
    "ampere": {"a100"},
    "ada": {"l4"},
    "hopper": {"h100", "gh200"},
    "blackwell": {"b200", "gke-b200"},
    "dgx-spark": {"spark"},
}


@pytest.fixture(scope="module", autouse=True)
def nodes(cluster: Cluster) -> Iterator[None]:
    """The same nodes as in the tests without a cluster, beside the real one, and one that was just added."""
    items = yaml.safe_load(NODES.read_text(encoding="utf-8"))["items"]
    fakes = [item for item in items if item["kind"] == "Node"]
    with fake_nodes(cluster, [*fakes, undiscovered(fakes, "b200", like="gke-b200")]):
        yield


def undiscovered(nodes: list[Object], name: str, *, like: str) -> Object:
    """A copy of a node under another name, with the label of GKE but without those of feature discovery."""
    (node,) = [candidate for candidate in nodes if candidate["metadata"]["name"] == name]
    other_labels = {
        key: value for key, value in node["metadata"]["labels"].items() if "nvidia.com" not in key
    }
    labels = {
        **other_labels,
        "kubernetes.io/hostname": like,
        "cloud.google.com/gke-accelerator": "nvidia-b200",
    }
    return {**node, "metadata": {"name": like, "labels": labels}}


def placed(service: Service) -> Object:
    """The only pod, once the service is served."""
    service.wait_serving()
    (pod,) = service.pods()
    return pod


def hardware(name: str, **more: Any) -> dict[str, Any]:
    return hub_spec(hardware={"class": name, **more})


def test_each_class_lands_on_its_node(service: MakeService) -> None:
    services = {name: service(name) for name in RIGHT}
    for name, embsvc in services.items():
        embsvc.apply(hardware(name))
    landed = {name: placed(embsvc)["spec"]["nodeName"] for name, embsvc in services.items()}
    assert {name for name, node in landed.items() if node not in RIGHT[name]} == set()
    for name, embsvc in services.items():
        hardware_status = embsvc.get()["status"]["hardware"]
        # The cluster's real node may fit a CPU class as well.
        assert hardware_status["class"] == name
        assert hardware_status["matchingNodes"] >= len(RIGHT[name])
        embsvc.delete()


def test_a_class_that_the_image_cannot_run_on_is_refused(service: MakeService) -> None:
    """The image of these tests was built on this machine, for its architecture only."""
    embsvc = service("foreign")
    embsvc.apply(hardware("cpu-arm64"))
    assert "has only amd64" in embsvc.wait_condition("Stalled", "True", "ImageLacksArchitecture")["message"]
    embsvc.delete()


def test_a_slice_lands_where_it_is_offered(service: MakeService) -> None:
    mig = service("mig")
    mig.apply(hardware("ampere", resourceName="nvidia.com/mig-1g.10gb"))
    assert placed(mig)["spec"]["nodeName"] == "a100-mig"
    mig.delete()


def test_a_node_that_only_the_cloud_has_labelled_takes_pods_of_its_class(service: MakeService) -> None:
    """An autoscaler adds a node to an empty pool by the labels that the cloud gives it; discovery comes later."""
    embsvc = service("scaled-up")
    selector = {"kubernetes.io/hostname": "gke-b200"}
    embsvc.apply({**hardware("blackwell"), "pod": {"nodeSelector": selector}})
    assert placed(embsvc)["spec"]["nodeName"] == "gke-b200"
    assert embsvc.get()["status"]["hardware"]["matchingNodes"] == 1
    embsvc.delete()


def test_a_toleration_of_the_user_opens_a_tainted_node(service: MakeService) -> None:
    tolerant = service("tolerant")
    tolerations = [{"key": "team", "operator": "Exists"}]
    tolerant.apply({**hardware("blackwell-rtx"), "pod": {"tolerations": tolerations}})
    assert placed(tolerant)["spec"]["nodeName"] == "rtx-pro"
    tolerant.delete()


@pytest.mark.parametrize(
    ("name", "spec", "reason", "words"),
    [
        pytest.param(
            "tainted",
            hardware("blackwell-rtx"),
            "NoMatchingNode",
            ("compute capability 12.0", "rtx-pro (taint team=graphics:NoSchedule)"),
            id="tainted",
        ),
        pytest.param(
            "nowhere",
            {**hardware("hopper"), "pod": {"nodeSelector": {"rack": "9"}}},
            "NoMatchingNode",
            (
                "label rack=9",
                "compute capability 9.0",
                "cloud.google.com/gke-accelerator=nvidia-h100-80gb",
                "The scheduler says: pod nowhere-",
            ),
            id="no node with the label",
        ),
        pytest.param(
            "too-many",
            hardware("hopper", count=8),
            "InsufficientAccelerators",
            ("h100 (4)", "gh200 (1)"),
            id="more accelerators than any node has",
        ),
    ],
)
def test_what_fits_no_node_says_why(
    service: MakeService, name: str, spec: dict[str, Any], reason: str, words: tuple[str, ...]
) -> None:
    embsvc = service(name)
    embsvc.apply(spec)
    embsvc.wait_condition("Reconciling", "True", reason)

    def says_all(resource: Object) -> bool:
        reported = condition(resource, "Reconciling")
        return reported is not None and all(want in reported["message"] for want in words)

    # The scheduler's words come a moment after ours.
    embsvc.wait_for(f"it says {words}", says_all)
    assert embsvc.get()["status"]["hardware"]["matchingNodes"] == 0
    embsvc.delete()


def test_accelerators_in_use_are_told_in_the_schedulers_words(service: MakeService) -> None:
    first, second = service("first"), service("second")
    first.apply(hardware("turing"))
    placed(first)
    second.apply(hardware("turing"))
    message = second.wait_condition("Reconciling", "True", "Unschedulable")["message"]
    assert "Insufficient nvidia.com/gpu" in message
    first.delete()
    assert placed(second)["spec"]["nodeName"] == "t4"
    second.delete()


@pytest.fixture
def no_runtime_class(kubectl: Kubectl) -> Iterator[None]:
    """No RuntimeClass of the classes' name is there, before and afterwards."""
    words = ("delete", "runtimeclass", "nvidia", "--ignore-not-found")
    kubectl(*words)
    yield
    kubectl(*words)


def test_a_runtime_class_that_others_install_and_delete_replaces_no_pod(
    kubectl: Kubectl, service: MakeService, no_runtime_class: None
) -> None:
    embsvc = service("undisturbed")
    embsvc.apply(hardware("ada"))
    before = placed(embsvc)["metadata"]["uid"]
    runtime_class = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}}
    kubectl.apply(json.dumps({**runtime_class, "handler": "nvidia"}))
    pass_over(embsvc, "installed")
    assert placed(embsvc)["metadata"]["uid"] == before
    kubectl("delete", "runtimeclass", "nvidia")
    pass_over(embsvc, "deleted")
    assert placed(embsvc)["metadata"]["uid"] == before
    embsvc.delete()


def pass_over(service: Service, mark: str) -> None:
    """Wait until the operator has gone over a service, which the mark on its child shows."""
    service.apply({**hardware("ada"), "service": {"annotations": {"pass": mark}}})
    service.wait_for(
        f"has the mark {mark}",
        lambda _: (
            service.child_named("service", service.name)["metadata"].get("annotations", {}).get("pass")
            == mark
        ),
    )


def test_one_accelerator_is_enough_for_an_update(service: MakeService) -> None:
    """The pod makes room before the next one comes: with a surge it would wait for a second device for ever."""
    embsvc = service("single")
    embsvc.apply(hardware("ada"))
    before = placed(embsvc)["metadata"]["uid"]
    embsvc.apply({**hardware("ada"), "batching": {"maxBatchTokens": 1024}})
    assert placed(embsvc)["metadata"]["uid"] != before
    embsvc.delete()
