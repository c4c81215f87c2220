"""Where pods may run: each class on the right nodes, and words for every node that is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from embedserve_operator.api.cloud_labels import CLOUD_LABELS
from embedserve_operator.api.hardware import CLASSES
from embedserve_operator.commands.render import read_cluster
from embedserve_operator.manifests.placement import build_node_requirements
from embedserve_operator.settings import RuntimeImage
from embedserve_operator.state.nodes import ClusterState, Taint, match_nodes
from tests.operator.builders import SETTINGS, Cluster, hub_spec, node, resource

NODES = read_cluster((Path(__file__).parents[1] / "nodes.yaml").read_text(encoding="utf-8"))
FITTING = {
    "cpu": ["plain", "graviton", "spark"],
    "cpu-x86": ["plain"],
    "cpu-arm64": ["graviton", "spark"],
    "turing": ["t4"],
    "ampere": ["a100"],
    "ada": ["l4"],
    "hopper": ["h100", "gh200"],
    "blackwell": ["b200"],
    "blackwell-rtx": [],
    "dgx-spark": ["spark"],
}


def cluster(spec: dict[str, Any], facts: ClusterState = NODES) -> Cluster:
    return Cluster(resource(spec), facts=facts)


def fitting(spec: dict[str, Any], facts: ClusterState = NODES) -> list[str]:
    parsed = cluster(spec).observed().resource.spec
    assert parsed is not None
    assert facts.nodes is not None
    return list(match_nodes(build_node_requirements(parsed, SETTINGS), facts.nodes).fitting)


@pytest.mark.parametrize("name", list(CLASSES))
def test_a_class_fits_exactly_its_nodes(name: str) -> None:
    assert fitting(hub_spec(hardware={"class": name})) == FITTING[name]


def test_a_slice_is_found_where_it_is_offered() -> None:
    mig = {"class": "ampere", "resourceName": "nvidia.com/mig-1g.10gb"}
    assert fitting(hub_spec(hardware=mig)) == ["a100-mig"]


def test_more_accelerators_than_a_node_has_do_not_fit_it() -> None:
    assert fitting(hub_spec(hardware={"class": "hopper", "count": 2})) == ["h100"]


def test_the_users_selector_and_tolerations_count_as_well() -> None:
    tolerant = {"tolerations": [{"key": "team", "operator": "Equal", "value": "graphics"}]}
    assert fitting(hub_spec(hardware={"class": "blackwell-rtx"}, pod=tolerant)) == ["rtx-pro"]
    assert fitting(hub_spec(pod={"nodeSelector": {"kubernetes.io/hostname": "plain"}})) == ["plain"]


def test_pods_are_placed_on_architectures_of_their_image_only() -> None:
    images = {**SETTINGS.images, "cpu": RuntimeImage("mine:1", architectures=("amd64",))}
    spec = cluster(hub_spec()).observed().resource.spec
    assert spec is not None
    assert build_node_requirements(spec, replace(SETTINGS, images=images)).architectures == ("amd64",)


@pytest.mark.parametrize(
    ("spec", "nodes", "reason", "words"),
    [
        pytest.param(
            hub_spec(hardware={"class": "hopper"}),
            (node("plain"), node("old", capability="7.5", gpu=1)),
            "NoMatchingNode",
            (
                "class hopper (architecture amd64 or arm64, compute capability 9.0 or a cloud's label for it",
                "1 node (amd64)",
                "1 node (amd64, compute capability 7.5, 1 nvidia.com/gpu)",
            ),
            id="no node of the capability",
        ),
        pytest.param(
            hub_spec(hardware={"class": "hopper", "count": 4}),
            (node("h100", capability="9.0", gpu=2),),
            "InsufficientAccelerators",
            ("no node of class hopper has 4 nvidia.com/gpu", "h100 (2)"),
            id="too few accelerators",
        ),
        pytest.param(
            hub_spec(hardware={"class": "cpu-arm64"}),
            (node("plain"),),
            "NoMatchingNode",
            ("architecture arm64", "1 node (amd64)"),
            id="no node of the architecture",
        ),
        pytest.param(
            hub_spec(),
            (node("away", cordoned=True), node("own", taints=(Taint("team", "x", "NoExecute"),))),
            "NoMatchingNode",
            ("except for a taint or cordon", "away (cordoned)", "own (taint team=x:NoExecute)"),
            id="all nodes are cordoned or tainted",
        ),
        pytest.param(hub_spec(), (), "NoMatchingNode", ("the cluster has no nodes",), id="no nodes"),
    ],
)
def test_a_service_that_fits_no_node_says_what_was_looked_for_and_what_there_is(
    spec: dict[str, Any], nodes: tuple[Any, ...], reason: str, words: tuple[str, ...]
) -> None:
    conditions = cluster(spec, ClusterState(nodes=nodes)).applied().conditions()
    assert (conditions["Ready"].reason, conditions["Reconciling"].reason) == (reason, reason)
    for want in words:
        assert want in conditions["Ready"].message


def waiting(spec: dict[str, Any], facts: ClusterState) -> Cluster:
    """After the scheduler has found no node."""
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    condition = {**unscheduled, "message": "0/2 nodes are available: 2 Insufficient cpu."}
    return cluster(spec, facts).applied().started(conditions=[condition])


def test_the_schedulers_words_are_passed_on() -> None:
    none = waiting(hub_spec(hardware={"class": "ada"}), ClusterState(nodes=(node("plain"),)))
    assert "The scheduler says: pod docs-" in none.conditions()["Ready"].message
    full = waiting(hub_spec(), ClusterState(nodes=(node("plain"),)))
    assert full.conditions()["Ready"].reason == "Unschedulable"
    assert "Insufficient cpu" in full.conditions()["Ready"].message


def test_without_nodes_only_the_scheduler_is_asked() -> None:
    unknown = waiting(hub_spec(hardware={"class": "ada"}), ClusterState())
    assert unknown.conditions()["Ready"].reason == "Unschedulable"
    hardware = unknown.status().hardware
    assert hardware is not None
    assert hardware.matching_nodes is None


def test_a_service_that_serves_is_not_disturbed_by_what_becomes_of_the_nodes() -> None:
    serving = (
        cluster(hub_spec(), ClusterState(nodes=(node("plain"),))).applied().rolled_out().applied().published()
    )
    emptied = replace(serving, facts=ClusterState(nodes=()))
    assert set(emptied.conditions()) == {"Ready"}
    assert emptied.conditions()["Ready"].status == "True"
    assert emptied.applied().children == serving.children


def template(rendered: Cluster) -> Any:
    deployment = next(c for c in rendered.plan().children if c["kind"] == "Deployment")
    return deployment["spec"]["template"]["spec"]


def test_a_runtime_class_is_set_only_where_it_exists() -> None:
    spec = hub_spec(hardware={"class": "ada"})
    assert template(cluster(spec))["runtimeClassName"] == "nvidia"
    assert "runtimeClassName" not in template(cluster(spec, ClusterState(nodes=NODES.nodes)))


def test_the_users_terms_are_each_narrowed_to_the_class() -> None:
    theirs = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    named = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [theirs, named]}}
    spec = hub_spec(hardware={"class": "blackwell"}, pod={"affinity": {"nodeAffinity": required}})
    affinity = template(cluster(spec))["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    for term in terms:
        keys = {expression["key"] for expression in term["matchExpressions"]}
        assert {"kubernetes.io/os", "kubernetes.io/arch"} <= keys
    # By compute capability, and by each label of a cloud.
    of_class = 1 + len(CLOUD_LABELS["blackwell"])
    assert [[*term] for term in terms] == [
        *of_class * [["matchExpressions"]],
        *of_class * [["matchFields", "matchExpressions"]],
    ]


GPU = hub_spec(hardware={"class": "hopper"})
WITH_CLASS = replace(NODES, runtime_classes=frozenset({"nvidia"}))
WITHOUT_CLASS = replace(NODES, runtime_classes=frozenset())


def runtime_class(rendered: Cluster) -> str | None:
    (deployment,) = [child for child in rendered.plan().children if child["kind"] == "Deployment"]
    name = deployment["spec"]["template"]["spec"].get("runtimeClassName")
    assert name is None or isinstance(name, str)
    return name


@pytest.mark.parametrize(
    ("before", "after"),
    [(WITH_CLASS, WITHOUT_CLASS), (WITHOUT_CLASS, WITH_CLASS)],
    ids=["deleted", "installed"],
)
def test_pods_that_serve_are_not_restarted_for_a_runtime_class_that_comes_or_goes(
    before: ClusterState, after: ClusterState
) -> None:
    serving = cluster(GPU, before).applied().rolled_out().applied().published()
    later = replace(serving, facts=after)
    assert runtime_class(later) == runtime_class(serving)
    assert later.applied() == later
    changed = later.changed({**GPU, "batching": {"maxBatchTokens": 64}})
    assert runtime_class(changed) == ("nvidia" if after is WITH_CLASS else None), (
        "with the next change it counts"
    )


def test_pods_that_found_no_accelerator_get_the_runtime_class_once_it_is_there() -> None:
    waiting = cluster(GPU, WITHOUT_CLASS).applied().started()
    assert runtime_class(replace(waiting, facts=WITH_CLASS)) == "nvidia"


def test_a_stopped_service_keeps_its_runtime_class() -> None:
    stopped = cluster({**GPU, "replicas": 0}, WITH_CLASS).applied().rolled_out()
    assert runtime_class(replace(stopped, facts=WITHOUT_CLASS)) == "nvidia"


def test_a_pool_that_is_scaled_up_from_no_node_is_explained_where_a_class_asks_for_a_capability() -> None:
    no_gpu = ClusterState(nodes=(node("plain"),))
    condition = cluster(GPU, no_gpu).applied().conditions()["Reconciling"]
    assert condition.reason == "NoMatchingNode"
    assert "cloud.google.com/gke-accelerator=nvidia-h100-80gb or nvidia-h100-mega-80gb" in condition.message
    assert (
        "nvidia.com/gpu.compute.major=9 and nvidia.com/gpu.compute.minor=0, which you can add"
        in condition.message
    )
    elsewhere = (
        cluster(hub_spec(hardware={"class": "cpu-arm64"}), no_gpu).applied().conditions()["Reconciling"]
    )
    assert elsewhere.reason == "NoMatchingNode"
    assert "autoscaler" not in elsewhere.message


@pytest.mark.parametrize(
    ("key", "value", "name"),
    [
        ("cloud.google.com/gke-accelerator", "nvidia-tesla-t4", "turing"),
        ("cloud.google.com/gke-accelerator", "nvidia-l4", "ada"),
        ("cloud.google.com/gke-accelerator", "nvidia-h100-80gb", "hopper"),
        ("karpenter.k8s.aws/instance-gpu-name", "a10g", "ampere"),
        ("karpenter.k8s.aws/instance-gpu-name", "b200", "blackwell"),
        ("eks.amazonaws.com/instance-gpu-name", "h200", "hopper"),
        ("karpenter.azure.com/sku-gpu-name", "A100", "ampere"),
        ("node.kubernetes.io/instance-type", "Standard_NC24ads_A100_v4", "ampere"),
        ("node.kubernetes.io/instance-type", "g6e.12xlarge", "ada"),
        ("node.kubernetes.io/instance-type", "g7e.2xlarge", "blackwell-rtx"),
    ],
)
def test_a_node_that_only_its_cloud_has_labelled_is_of_one_class(key: str, value: str, name: str) -> None:
    facts = ClusterState(nodes=(node("new", labels={key: value}, gpu=8),))
    classes = {
        class_name for class_name in CLASSES if fitting(hub_spec(hardware={"class": class_name}), facts)
    }
    assert classes - {"cpu", "cpu-x86"} == {name}


def test_no_value_of_a_cloud_stands_for_two_classes() -> None:
    every = [(key, value) for labels in CLOUD_LABELS.values() for key in labels for value in labels[key]]
    assert len(every) == len(set(every))


def test_a_label_of_a_cloud_does_not_bring_accelerators() -> None:
    labels = {"cloud.google.com/gke-accelerator": "nvidia-l4"}
    facts = ClusterState(nodes=(node("no-plugin", labels=labels),))
    condition = cluster(hub_spec(hardware={"class": "ada"}), facts).applied().conditions()["Reconciling"]
    assert (condition.reason, "no-plugin (0)" in condition.message) == ("InsufficientAccelerators", True)
