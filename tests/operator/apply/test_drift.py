"""What counts as a change of a child, and what does not."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedserve_operator.api.quantities import parse_quantity
from embedserve_operator.apply.drift import AppliedDifferences, find_differences, find_reason_to_apply
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.kube.references import ChildRef
from embedserve_operator.kube.views.children import parse_child
from embedserve_operator.state.resource import Child
from tests.operator.builders import Cluster, hub_spec, resource

SPEC = hub_spec(resources={"limits": {"cpu": 1, "memory": "1024Mi"}})


def plan_child(kind: str) -> Manifest:
    return next(c for c in Cluster(resource(SPEC)).plan().children if c["kind"] == kind)


def reason(kind: str, change: Callable[[Any], None]) -> str | None:
    manifest = plan_child(kind)
    live = deepcopy(manifest)
    change(live)
    return find_reason_to_apply(manifest, child_of(live), AppliedDifferences())


def child_of(live: Manifest) -> Child:
    mark = live["metadata"].get("annotations", {}).get("embedserve.dev/fingerprint", "")
    ref = ChildRef(live["kind"], live["metadata"]["name"])
    return Child(ref, "uid", mark, parse_child(live), live)


def _container(live: Any) -> Any:
    return live["spec"]["template"]["spec"]["containers"][0]


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        pytest.param("Deployment", lambda live: live.update(status={"replicas": 1}), id="status"),
        pytest.param(
            "Deployment", lambda live: live["metadata"]["labels"].update(mesh="on"), id="a label of somebody"
        ),
        pytest.param(
            "Deployment",
            lambda live: live["spec"]["template"]["spec"]["containers"].append({"name": "sidecar"}),
            id="an injected container",
        ),
        pytest.param(
            "Deployment", lambda live: live["spec"].update(progressDeadlineSeconds=600), id="a default"
        ),
        pytest.param(
            "Deployment",
            lambda live: _container(live)["resources"]["limits"].update(cpu="1", memory="1Gi"),
            id="another spelling of a quantity",
        ),
        pytest.param(
            "Deployment",
            lambda live: live["spec"]["template"]["metadata"]["annotations"].update(
                {"kubectl.kubernetes.io/restartedAt": "2026-01-02T12:00:00Z"}
            ),
            id="kubectl rollout restart",
        ),
        pytest.param("Service", lambda live: live["spec"].update(clusterIP="10.0.0.1"), id="the cluster IP"),
        pytest.param(
            "Service", lambda live: live["spec"]["ports"][0].update(nodePort=30000), id="a node port"
        ),
        pytest.param(
            "Deployment",
            lambda live: live["spec"].pop("revisionHistoryLimit"),
            id="a zero that the API leaves out",
        ),
    ],
)
def test_an_addition_of_others_is_left_alone(kind: str, change: Callable[[Any], None]) -> None:
    assert reason(kind, change) is None


@pytest.mark.parametrize(
    ("kind", "change", "want"),
    [
        pytest.param(
            "Deployment",
            lambda live: live["spec"].update(replicas=5),
            "spec.replicas is not as it should be",
            id="scaled",
        ),
        pytest.param(
            "Deployment", lambda live: _container(live).update(image="evil"), "[runtime].image", id="image"
        ),
        pytest.param(
            "Deployment",
            lambda live: _container(live)["resources"]["limits"].update(memory="2Gi"),
            "limits.memory",
            id="a limit",
        ),
        pytest.param("Deployment", lambda live: _container(live).pop("env"), "env", id="environment removed"),
        pytest.param(
            "Deployment",
            lambda live: live["spec"]["template"]["spec"]["initContainers"].clear(),
            "initContainers[fetch]",
            id="a container removed",
        ),
        pytest.param(
            "Service",
            lambda live: live["spec"]["selector"].update(app="other"),
            "spec.selector",
            id="a selector made narrower",
        ),
        pytest.param(
            "ConfigMap",
            lambda live: live["data"].update({"runtime.yaml": ""}),
            "data.runtime.yaml",
            id="data",
        ),
        pytest.param("Service", lambda live: live["metadata"].pop("labels"), "metadata.labels", id="labels"),
        pytest.param(
            "Service",
            lambda live: live["metadata"]["annotations"].clear(),
            "should be different",
            id="fingerprint removed",
        ),
    ],
)
def test_a_change_of_ours_is_seen_and_named(kind: str, change: Callable[[Any], None], want: str) -> None:
    why = reason(kind, change)
    assert why is not None
    assert want in why


def test_a_child_that_does_not_exist_has_to_be_made() -> None:
    assert find_reason_to_apply(plan_child("Service"), None, AppliedDifferences()) == "it does not exist"


@pytest.mark.parametrize(
    ("quantity", "number"),
    [
        (1, 1),
        ("-1", -1),
        ("0.5", Decimal("0.5")),
        (".5", Decimal("0.5")),
        ("500m", Decimal("0.5")),
        ("3u", Decimal("0.000003")),
        ("3n", Decimal("0.000000003")),
        ("1e3", 1000),
        ("1E3", 1000),
        ("2k", 2_000),
        ("2M", 2_000_000),
        ("2G", 2_000_000_000),
        ("2T", 2_000_000_000_000),
        ("2P", 2_000_000_000_000_000),
        ("2E", 2_000_000_000_000_000_000),
        ("1Ki", 1_024),
        ("1Mi", 1_048_576),
        ("1.5Gi", 1_610_612_736),
        ("1Ti", 1_099_511_627_776),
        ("1Pi", 1_125_899_906_842_624),
        ("1Ei", 1_152_921_504_606_846_976),
        (True, None),
        ("1 Gi", None),
        ("1KI", None),
        ("", None),
    ],
)
def test_the_number_that_a_quantity_stands_for(quantity: Any, number: int | Decimal | None) -> None:
    assert parse_quantity(quantity) == number


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=40)
@given(JSON)
def test_nothing_differs_from_itself(value: Any) -> None:
    assert list(find_differences(value, value)) == []


SPELLED_OTHERWISE = [
    pytest.param(
        {"metrics": [{"pods": {"target": {"averageValue": "1000m"}}}]},
        {"metrics": [{"pods": {"target": {"averageValue": "1"}}}]},
        id="a target in thousandths",
    ),
    pytest.param({"limits": {"nvidia.com/gpu": 1}}, {"limits": {"nvidia.com/gpu": "1"}}, id="a GPU"),
    pytest.param(
        {"volumes": [{"name": "x", "emptyDir": {"sizeLimit": "1024Mi"}}]},
        {"volumes": [{"name": "x", "emptyDir": {"sizeLimit": "1Gi"}}]},
        id="the size of a folder",
    ),
    pytest.param(
        {"egress": [{"ports": [{"port": 3128}], "to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}]},
        {
            "egress": [
                {"ports": [{"port": 3128, "protocol": "TCP"}], "to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}
            ]
        },
        id="a port whose protocol is the default",
    ),
]


@pytest.mark.parametrize(("sent", "live"), SPELLED_OTHERWISE)
def test_a_value_in_the_spelling_of_the_api_server_is_no_change(sent: Manifest, live: Manifest) -> None:
    assert list(find_differences(sent, live)) == []


@pytest.mark.parametrize(
    ("sent", "live", "path"),
    [
        ({"egress": [{"ports": [{"port": 1}]}]}, {"egress": []}, "egress"),
        (
            {"egress": [{"ports": [{"port": 1}]}]},
            {"egress": [{"ports": [{"port": 2}]}]},
            "egress[0].ports[0].port",
        ),
        ({"limits": {"nvidia.com/gpu": 1}}, {"limits": {"nvidia.com/gpu": "2"}}, "limits.nvidia.com/gpu"),
        ({"target": {"averageValue": "1"}}, {"target": {"averageValue": "2"}}, "target.averageValue"),
    ],
)
def test_another_value_is_a_change(sent: Manifest, live: Manifest, path: str) -> None:
    assert [difference.path for difference in find_differences(sent, live)] == [path]


def mutated(live: Manifest) -> Manifest:
    """Return a Deployment as an admission webhook leaves it: with another image."""
    changed = deepcopy(live)
    changed["metadata"]["uid"] = "uid"
    _container(changed)["image"] = "mirror.example/embedserve-runtime"
    return changed


def test_what_the_answer_to_an_apply_differs_in_is_not_sent_again() -> None:
    manifest, applied = plan_child("Deployment"), AppliedDifferences()
    answer = mutated(manifest)
    assert find_reason_to_apply(manifest, child_of(answer), applied) is not None
    applied.record(manifest, answer)
    assert find_reason_to_apply(manifest, child_of(answer), applied) is None
    later = {**answer, "status": {"replicas": 1}}
    assert find_reason_to_apply(manifest, child_of(later), applied) is None, (
        "a status is not what was applied"
    )


def test_a_later_change_is_seen_beside_what_the_api_server_had_changed_itself() -> None:
    manifest, applied = plan_child("Deployment"), AppliedDifferences()
    answer = mutated(manifest)
    applied.record(manifest, answer)
    scaled = {**answer, "spec": {**answer["spec"], "replicas": 5}}
    assert find_reason_to_apply(manifest, child_of(scaled), applied) is not None
    next_children = Cluster(resource({**SPEC, "replicas": 2})).plan().children
    next_manifest = next(child for child in next_children if child["kind"] == "Deployment")
    assert find_reason_to_apply(next_manifest, child_of(answer), applied) == "it should be different"
