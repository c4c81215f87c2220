"""Of the changes of nodes and RuntimeClasses, a service is looked at again for those that concern it."""

from __future__ import annotations

from typing import Any

import pytest

from embedserve_operator.cache.cluster import ClusterCache
from embedserve_operator.cache.cluster_watch import ClusterWatch
from embedserve_operator.cache.objects import ObjectCache
from embedserve_operator.cache.placement import PlacementIndex
from embedserve_operator.kube.kinds import NODE, RESOURCE, RUNTIME_CLASS
from tests.operator.builders import SETTINGS, hub_spec, resource

HOPPER = {"class": "hopper"}
SPECS = {
    "cpu": hub_spec(),
    "pool": hub_spec(pod={"nodeSelector": {"pool": "search"}}),
    "gpu": hub_spec(hardware=HOPPER),
    "own-runtime": hub_spec(hardware=HOPPER, pod={"runtimeClassName": "kata"}),
    "unknown-class": hub_spec(hardware={"class": "quantum"}),
    "broken": {"model": {}},
}


def watch() -> tuple[ClusterWatch, ObjectCache]:
    objects = ObjectCache()
    for name, spec in SPECS.items():
        service = resource(spec, name=name)
        objects.put(RESOURCE, {**service, "metadata": {**service["metadata"], "uid": f"uid-{name}"}})
    cluster_watch = ClusterWatch(ClusterCache(watches_nodes=True), PlacementIndex(objects, SETTINGS))
    for received in (CPU_NODE, GPU_NODE):
        cluster_watch.handle_event(NODE, received, is_gone=False)
    return cluster_watch, objects


def node(name: str, gpus: int = 0, **labels: str) -> dict[str, Any]:
    common = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    capability = {"nvidia.com/gpu.compute.major": "9", "nvidia.com/gpu.compute.minor": "0"} if gpus else {}
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": {**common, **capability, **labels}},
        "status": {"allocatable": {"nvidia.com/gpu": str(gpus)} if gpus else {}},
    }


CPU_NODE, GPU_NODE = node("plain"), node("h100", gpus=8)


def changed(received: dict[str, Any], *, is_gone: bool = False, kind: str = NODE) -> set[str]:
    """The services that are looked at again."""
    return {key.name for key in watch()[0].handle_event(kind, received, is_gone=is_gone)}


@pytest.mark.parametrize(
    ("received", "want"),
    [
        pytest.param(CPU_NODE, set(), id="nothing new"),
        pytest.param(node("plain", team="web"), set(), id="a label that nobody asks for"),
        pytest.param(node("plain", pool="search"), {"pool"}, id="a label that a service asks for"),
        pytest.param(node("h100", gpus=4), {"pool"}, id="fewer accelerators than before, and enough"),
        pytest.param(node("other", gpus=8), set(SPECS) - {"unknown-class", "broken"}, id="a node more"),
        pytest.param(
            {**GPU_NODE, "spec": {"unschedulable": True}},
            set(SPECS) - {"unknown-class", "broken", "pool"},
            id="a node that takes no pods any more",
        ),
    ],
)
def test_a_change_of_a_node(received: dict[str, Any], want: set[str]) -> None:
    assert changed(received) == want


def test_a_node_that_is_gone_concerns_those_who_might_have_used_it() -> None:
    assert changed(GPU_NODE, is_gone=True) == {"cpu", "pool", "gpu", "own-runtime"}


@pytest.mark.parametrize(("name", "want"), [("nvidia", {"gpu"}), ("kata", set()), ("gvisor", set())])
def test_a_runtime_class_concerns_those_whose_class_would_take_it(name: str, want: set[str]) -> None:
    assert changed({"metadata": {"name": name}}, kind=RUNTIME_CLASS) == want


def test_what_a_spec_asks_for_counts_from_its_change_on() -> None:
    cluster_watch, objects = watch()
    again = resource(hub_spec(pod={"nodeSelector": {"pool": "web"}}), name="pool", generation=2)
    objects.put(RESOURCE, {**again, "metadata": {**again["metadata"], "uid": "uid-pool"}})
    assert cluster_watch.handle_event(NODE, node("plain", pool="search"), is_gone=False) == []
    assert [
        key.name for key in cluster_watch.handle_event(NODE, node("plain", pool="web"), is_gone=False)
    ] == ["pool"]
