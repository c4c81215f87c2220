"""Questions of the autoscaler and what pods said -> answers."""

from __future__ import annotations

from typing import Any

import pytest

from embedserve_operator.adapter.metrics_page import read_gauge, read_page
from embedserve_operator.adapter.queries import ROOT, parse_query
from embedserve_operator.adapter.responses import build_metric_values, build_resource_list, format_quantity
from embedserve_operator.adapter.selectors import matches_selector, parse_selector
from embedserve_operator.adapter.targets import ScrapeTarget, read_target
from embedserve_operator.errors import (
    InvalidMetricQueryError,
    MetricQueryError,
    PodsUnresponsiveError,
    UnknownMetricError,
)
from embedserve_operator.kube.views.pods import Pod

NOW = "2030-01-01T00:00:00Z"
PAGE = """# HELP embedserve_queue_depth Inputs waiting.
# TYPE embedserve_queue_depth gauge
embedserve_queue_depth {depth}
# TYPE embedserve_requests_total counter
embedserve_requests_total{{route="/embed"}} 7
# TYPE embedserve_lanes gauge
embedserve_lanes{{lane="bulk",kind="text"}} 5
embedserve_lanes{{lane="single",kind="text"}} 0.25
# TYPE embedserve_broken gauge
embedserve_broken NaN
"""
DEPTH = f"{ROOT}/namespaces/search/pods/%2A/embedserve_queue_depth"


def pods(*names: str, ready: bool = True) -> list[ScrapeTarget]:
    return [ScrapeTarget(f"uid-{name}", name, f"http://{name}:8081/metrics", ready) for name in names]


def values(path: str, depths: dict[str, int], targets: list[ScrapeTarget], **query: str) -> dict[str, str]:
    pages = {f"uid-{name}": read_page(PAGE.format(depth=depth).encode()) for name, depth in depths.items()}
    response = build_metric_values(parse_query(path, query), targets, pages, NOW)
    return {item["describedObject"]["name"]: item["value"] for item in response["items"]}


def test_every_pod_that_answered_is_told_with_an_explicit_zero_and_a_silent_one_is_missing() -> None:
    assert values(DEPTH, {"a": 12, "b": 0}, pods("a", "b", "c")) == {"a": "12", "b": "0"}


def test_what_a_pod_that_is_no_longer_listed_once_said_is_not_told() -> None:
    assert values(DEPTH, {"a": 12, "gone": 99}, pods("a")) == {"a": "12"}


def test_one_pod_may_be_asked_for_by_name() -> None:
    path = DEPTH.replace("%2A", "b")
    assert values(path, {"a": 1, "b": 2}, pods("a", "b")) == {"b": "2"}


@pytest.mark.parametrize("resource", ["services", "embeddingservices.embedserve.dev"])
def test_an_object_has_the_sum_of_its_pods(resource: str) -> None:
    path = f"{ROOT}/namespaces/search/{resource}/docs/embedserve_queue_depth"
    assert values(path, {"a": 1, "b": 2}, pods("a", "b")) == {"docs": "3"}
    assert values(path, {"a": 1}, pods("a") + pods("starting", ready=False)) == {"docs": "1"}
    with pytest.raises(PodsUnresponsiveError, match="did not answer: b"):
        values(path, {"a": 1}, pods("a", "b"))


@pytest.mark.parametrize(
    ("selector", "want"),
    [
        pytest.param("", "5250m", id="all series are summed"),
        pytest.param("lane=bulk", "5", id="one value"),
        pytest.param("lane in (bulk, single),kind!=image", "5250m", id="a set and an inequality"),
        pytest.param("lane notin (bulk)", "250m", id="all but a set"),
        pytest.param("lane,!colour,lane==single", "250m", id="existence"),
    ],
)
def test_series_are_chosen_by_their_labels(selector: str, want: str) -> None:
    path = DEPTH.replace("queue_depth", "lanes")
    assert values(path, {"a": 0}, pods("a"), metricLabelSelector=selector) == {"a": want}


@pytest.mark.parametrize(
    ("path", "query", "error", "words"),
    [
        pytest.param(
            DEPTH + "_x", {}, UnknownMetricError, "no gauge embedserve_queue_depth_x", id="no gauge"
        ),
        pytest.param(
            DEPTH.replace("queue_depth", "requests_total"),
            {},
            UnknownMetricError,
            "is no gauge",
            id="a counter",
        ),
        pytest.param(
            DEPTH.replace("queue_depth", "lanes"),
            {"metricLabelSelector": "lane=x"},
            UnknownMetricError,
            "with labels lane=x",
            id="no series with such labels",
        ),
        pytest.param(
            DEPTH.replace("queue_depth", "broken"), {}, MetricQueryError, "no gauge", id="no number"
        ),
        pytest.param(
            DEPTH.replace("%2A", "z"), {}, UnknownMetricError, "no pod is running", id="no such pod"
        ),
        pytest.param(
            DEPTH.replace("pods/%2A", "nodes/n"),
            {},
            UnknownMetricError,
            "not of nodes",
            id="no such resource",
        ),
        pytest.param(
            DEPTH.replace("pods", "services"), {}, UnknownMetricError, "give a name", id="all services"
        ),
        pytest.param(
            f"{ROOT}/namespaces/search/pods", {}, UnknownMetricError, "nothing at", id="half a path"
        ),
        pytest.param(
            DEPTH, {"metricLabelSelector": "a b"}, InvalidMetricQueryError, "'a b'", id="no selector"
        ),
    ],
)
def test_a_question_without_an_answer_says_why(
    path: str, query: dict[str, str], error: type[MetricQueryError], words: str
) -> None:
    with pytest.raises(error, match=words):
        values(path, {"a": 1}, pods("a"), **query)


def test_silence_of_all_pods_is_not_taken_for_a_missing_metric() -> None:
    with pytest.raises(PodsUnresponsiveError, match="none of 2 pods"):
        values(DEPTH, {}, pods("a", "b"))


def test_only_pods_of_services_are_asked_for_whatever_the_selector_says() -> None:
    question = parse_query(DEPTH, {"labelSelector": "app=web"})
    assert question.pod_selector == "app=web,embedserve.dev/service"
    assert question.namespace == "search"


@pytest.mark.parametrize(
    ("value", "want"),
    [
        (0.0, "0"),
        (12.0, "12"),
        (0.1, "100m"),
        (1.2345, "1235m"),
        (1e-9, "1m"),
        (1e-4, "1m"),
        (2e9, "2000000000"),
    ],
)
def test_quantities_keep_thousandths_and_round_up(value: float, want: str) -> None:
    assert format_quantity(value) == want


def test_a_page_without_the_gauge_is_no_zero() -> None:
    assert read_gauge(read_page(b"nothing of use"), "embedserve_queue_depth", ()) is None
    assert read_gauge(read_page(b"# TYPE g gauge\ng{ 1\n"), "g", ()) is None


def test_a_label_that_is_not_there_is_in_no_set() -> None:
    assert matches_selector(parse_selector("a!=b"), {})
    assert not matches_selector(parse_selector("a=b"), {})


def pod(**status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "uid": "u"},
        "spec": {"containers": [{"ports": [{"name": "management", "containerPort": 8081}]}]},
        "status": {"phase": "Running", "podIP": "10.0.0.7", **status},
    }


def test_a_pod_is_asked_at_its_management_port() -> None:
    ready = pod(conditions=[{"type": "Ready", "status": "True"}])
    assert read_target(Pod.parse(ready)) == ScrapeTarget("u", "p", "http://10.0.0.7:8081/metrics", True)
    six = read_target(Pod.parse(pod(podIP="fd00::7")))
    assert six is not None
    assert six.url == "http://[fd00::7]:8081/metrics"


@pytest.mark.parametrize(
    "received",
    [
        pytest.param(pod(phase="Pending"), id="not begun"),
        pytest.param(pod(phase="Succeeded"), id="ended"),
        pytest.param(pod(podIP=None), id="no address"),
        pytest.param({**pod(), "metadata": {"deletionTimestamp": NOW}}, id="ending"),
        pytest.param({**pod(), "spec": {"containers": [{}]}}, id="no management port"),
    ],
)
def test_a_pod_that_cannot_be_asked_is_left_out(received: dict[str, Any]) -> None:
    assert read_target(Pod.parse(received)) is None


def test_the_discovery_document_names_what_can_be_asked() -> None:
    names = {resource["name"] for resource in build_resource_list()["resources"]}
    assert "pods/embedserve_queue_depth" in names
    assert "embeddingservices.embedserve.dev/embedserve_requests_in_flight" in names
