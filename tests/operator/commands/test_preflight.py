"""What `preflight` makes of a cluster, and what it exits with."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from embedserve_operator.commands.cli import kubectl_plugin
from embedserve_operator.commands.preflight.assess import (
    FindingState,
    assess_cluster,
    choose_exit_status,
    format_report,
)
from embedserve_operator.commands.preflight.facts import (
    ApiServiceFact,
    ClusterFacts,
    Expectations,
    FeatureUse,
    Leader,
    OperatorTarget,
    Provider,
)
from embedserve_operator.commands.preflight.gather import gather_facts
from embedserve_operator.kube.client import KubeClient
from embedserve_operator.kube.permissions import Permission
from tests.operator.api_server import ApiServer, serving, status, write_kubeconfig

OURS = ApiServiceFact(
    "v1beta2.custom.metrics.k8s.io", "custom.metrics.k8s.io", "embedserve-system/adapter", is_ours=True
)
FOREIGN = ApiServiceFact(
    "v1beta1.custom.metrics.k8s.io", "custom.metrics.k8s.io", "monitoring/prometheus-adapter"
)
CPU = ApiServiceFact("v1beta1.metrics.k8s.io", "metrics.k8s.io", "kube-system/metrics-server")
DEAD = ApiServiceFact(
    "v1.dead.example", "dead.example", "old/gone", is_available=False, message="no endpoints"
)
BEFORE = Expectations()
GOOD = ClusterFacts(
    version=(1, 34),
    has_crd=True,
    missing_permissions=(),
    leader=Leader("operator-a", 2.0, is_expired=False),
    has_lease=True,
    apis=(OURS, CPU),
    has_metrics_group=True,
    has_keda=False,
    has_monitoring=True,
    has_image_volumes=True,
    default_storage="fast",
    has_storage=True,
    feature_use=FeatureUse(autoscaling=1, images=1, default_storage=1),
)
BARE = replace(
    GOOD,
    has_crd=False,
    leader=None,
    has_lease=False,
    apis=(),
    has_metrics_group=False,
    has_monitoring=False,
    has_image_volumes=False,
    default_storage=None,
    has_storage=False,
    feature_use=None,
)


def states(facts: ClusterFacts, expectations: Expectations = BEFORE) -> dict[str, FindingState]:
    return {
        finding.subject: finding.state
        for finding in assess_cluster(facts, expectations)
        if finding.state is not FindingState.OK
    }


def test_a_cluster_that_has_all_passes() -> None:
    findings = assess_cluster(GOOD, Expectations(is_installed=True))
    assert {finding.state for finding in findings} == {FindingState.OK}
    assert choose_exit_status(findings) == 0
    assert format_report(findings).endswith("\nnothing is missing\n")


def test_before_the_installation_nothing_is_missing_that_the_chart_brings_or_nobody_needs() -> None:
    assert states(BARE) == {
        "definition": FindingState.LATER,
        "operator": FindingState.LATER,
        "autoscaling": FindingState.WARNING,
        "CPU metrics": FindingState.WARNING,
        "image volumes": FindingState.WARNING,
        "storage": FindingState.WARNING,
        "monitoring": FindingState.LATER,
    }
    assert choose_exit_status(assess_cluster(BARE, Expectations())) == 0


def test_after_it_what_the_chart_brings_has_to_be_there() -> None:
    states_by_subject = states(BARE, Expectations(is_installed=True))
    assert {subject for subject, state in states_by_subject.items() if state is FindingState.MISSING} == {
        "definition",
        "operator",
    }


@pytest.mark.parametrize(
    ("facts", "expectations", "subject", "words"),
    [
        pytest.param(replace(GOOD, version=(1, 28)), Expectations(), "Kubernetes", "too old", id="too old"),
        pytest.param(
            replace(
                GOOD,
                missing_permissions=(
                    Permission("apps", "deployments", "patch"),
                    Permission("", "pods", "list"),
                ),
            ),
            Expectations(),
            "rights",
            "may not patch deployments.apps, list pods",
            id="rights that the operator uses",
        ),
        pytest.param(
            replace(GOOD, leader=Leader("operator-a", 90.0, is_expired=True)),
            Expectations(is_installed=True),
            "operator",
            "operator-a held the Lease",
            id="an operator that ended",
        ),
        pytest.param(
            replace(GOOD, apis=(CPU,), has_metrics_group=False),
            Expectations(),
            "autoscaling",
            "spec.autoscaling changes nothing",
            id="a service scales and nobody measures",
        ),
        pytest.param(
            replace(GOOD, apis=(replace(OURS, is_available=False, message="no endpoints"),)),
            Expectations(),
            "autoscaling",
            "does not answer: no endpoints",
            id="a provider that is dead",
        ),
        pytest.param(
            replace(GOOD, apis=(FOREIGN,)),
            Expectations("adapter"),
            "autoscaling",
            "monitoring/prometheus-adapter",
            id="the adapter where somebody else is",
        ),
        pytest.param(
            GOOD, Expectations("keda"), "autoscaling", "KEDA is asked for", id="KEDA where there is none"
        ),
        pytest.param(
            replace(GOOD, apis=(CPU,), has_metrics_group=False),
            Expectations("prometheus-adapter"),
            "autoscaling",
            "prometheus-adapter is asked for",
            id="a prometheus-adapter where there is none",
        ),
        pytest.param(
            replace(GOOD, has_image_volumes=False),
            Expectations(),
            "image volumes",
            "1 services have one",
            id="a model in an image where the cluster mounts none",
        ),
        pytest.param(
            replace(GOOD, default_storage=None, has_storage=False),
            Expectations(),
            "storage",
            "rely on one",
            id="a cache without a StorageClass",
        ),
    ],
)
def test_what_is_needed_and_not_there_fails_and_is_named(
    facts: ClusterFacts, expectations: Expectations, subject: str, words: str
) -> None:
    findings = assess_cluster(facts, expectations)
    (missing,) = [finding for finding in findings if finding.state is FindingState.MISSING]
    assert missing.subject == subject
    assert words in missing.message
    assert choose_exit_status(findings) == 1
    assert format_report(findings).endswith("\n1 missing\n")


@pytest.mark.parametrize(
    ("facts", "provider", "words"),
    [
        (GOOD, "adapter", "(ours)"),
        (replace(GOOD, apis=(FOREIGN,)), "prometheus-adapter", "monitoring/prometheus-adapter"),
        (replace(GOOD, apis=(), has_metrics_group=False, has_keda=True), "keda", "KEDA"),
        (replace(GOOD, apis=None), "auto", "somebody answers"),
        (replace(GOOD, apis=(), has_metrics_group=False), "none", "nobody answers"),
    ],
)
def test_who_answers_autoscalers_is_named(facts: ClusterFacts, provider: Provider, words: str) -> None:
    (scaling,) = [
        finding
        for finding in assess_cluster(facts, Expectations(provider))
        if finding.subject == "autoscaling"
    ]
    assert scaling.state is FindingState.OK
    assert words in scaling.message


def test_an_api_that_nobody_answers_is_told_since_it_blocks_the_cluster() -> None:
    (dead_api,) = [
        finding
        for finding in assess_cluster(replace(GOOD, apis=(OURS, CPU, DEAD)), Expectations())
        if finding.state != FindingState.OK
    ]
    assert (dead_api.state, "no namespace can be deleted" in dead_api.message) == (FindingState.WARNING, True)


def test_what_the_caller_may_not_see_is_unknown_and_not_missing() -> None:
    blind = replace(
        GOOD,
        apis=None,
        has_lease=None,
        leader=None,
        has_image_volumes=None,
        has_storage=None,
        feature_use=None,
    )
    assert set(states(blind, Expectations(is_installed=True)).values()) == {FindingState.UNKNOWN}


class Cluster:
    """An API server that refuses what it has no answer for, and one right."""

    def __init__(self) -> None:
        self.reviews: list[dict[str, Any]] = []
        self.answers: dict[str, Any] = {
            "/version": {"major": "1", "minor": "33+"},
            "/apis": {"groups": [{"name": "custom.metrics.k8s.io"}]},
            "/apis/embedserve.dev/v1alpha1": {"resources": [{"name": "embeddingservices"}]},
            "/apis/apiregistration.k8s.io/v1/apiservices": {
                "items": [
                    {
                        "metadata": {"name": FOREIGN.name},
                        "spec": {
                            "group": FOREIGN.group,
                            "service": {"namespace": "monitoring", "name": "prometheus-adapter"},
                        },
                        "status": {
                            "conditions": [
                                {"type": "Available", "status": "False", "message": "no endpoints"}
                            ]
                        },
                    }
                ]
            },
            "/apis/coordination.k8s.io/v1/namespaces/system/leases/embedserve-operator": {
                "spec": {
                    "holderIdentity": "operator-a",
                    "renewTime": "2026-11-28T10:00:00.500000Z",
                    "leaseDurationSeconds": 15,
                }
            },
        }

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path.startswith("/apis/authorization.k8s.io/"):
            review = json.loads(await request.read())
            self.reviews.append(review)
            allowed = review["spec"]["resourceAttributes"]["resource"] != "nodes"
            return web.json_response({"status": {"allowed": allowed}})
        if request.path in self.answers:
            return web.json_response(self.answers[request.path])
        code = 404 if request.path.count("/") == len(("", "apis", "group")) else 403
        return status(code, "no")


async def test_a_cluster_is_asked_without_writing_into_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, server = Cluster(), ApiServer()
    server.answer = cluster.answer
    place = OperatorTarget("system", "embedserve-operator", "operator", ("search",), watches_nodes=True)
    async with serving(server, tmp_path, monkeypatch), KubeClient(request_timeout=5) as kube:
        facts = await gather_facts(kube, place, datetime(2026, 11, 28, 10, 0, 10, tzinfo=UTC))
    assert facts == ClusterFacts(
        version=(1, 33),
        has_crd=True,
        missing_permissions=(Permission("", "nodes", "list"), Permission("", "nodes", "watch")),
        leader=Leader("operator-a", 9.5, is_expired=False),
        has_lease=True,
        apis=(replace(FOREIGN, is_available=False, message="no endpoints"),),
        has_metrics_group=True,
        has_keda=False,
        has_monitoring=False,
        has_image_volumes=None,
        default_storage=None,
        has_storage=None,
        feature_use=None,
    )
    writes = {request.split("?")[0] for request in server.requests if not request.startswith("GET")}
    assert writes == {
        "POST /apis/authorization.k8s.io/v1/subjectaccessreviews",
        "POST /api/v1/namespaces/default/pods",
    }
    assert all("dryRun=All" in request for request in server.requests if "/pods?" in request)
    assert {review["spec"]["user"] for review in cluster.reviews} == {"system:serviceaccount:system:operator"}


def test_a_cluster_that_does_not_answer_is_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_kubeconfig(tmp_path / "kubeconfig", "http://127.0.0.1:9", monkeypatch)
    assert kubectl_plugin(["preflight"]) == 1
    captured = capsys.readouterr()
    assert (captured.out, captured.err.partition(":")[0]) == ("", "kubectl embedserve preflight")
