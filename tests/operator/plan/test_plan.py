"""The life of a service, step by step: what the plan keeps, makes, switches and prunes."""

from __future__ import annotations

from typing import Any

import pytest

from embedserve_operator.state.nodes import ClusterState
from tests.operator.builders import (
    OTHER_REPO,
    REPO,
    REPORT,
    Cluster,
    failed,
    fetched,
    hub_spec,
    resource,
)

FIRST, SECOND, THIRD = hub_spec(REPO), hub_spec(OTHER_REPO), hub_spec(REPO, model={"pooling": "cls"})
NOT_FOUND = failed("ModelNotFound", "no repository acme/missing", retryable=False)
UNAVAILABLE = failed("SourceUnavailable", "the Hub does not answer", retryable=True)


def serving(spec: dict[str, Any] = FIRST) -> Cluster:
    """A service that runs as asked for."""
    return Cluster(resource(spec)).applied().rolled_out().applied().published()


def test_a_new_resource_gets_its_children_in_the_order_they_need_each_other() -> None:
    kinds = [child["kind"] for child in Cluster().plan().children]
    assert kinds == ["ConfigMap", "NetworkPolicy", "Deployment", "Service"]


def test_a_complete_service_is_ready_and_nothing_else() -> None:
    conditions = serving().conditions()
    assert set(conditions) == {"Ready"}
    assert (conditions["Ready"].status, conditions["Ready"].reason) == ("True", "Serving")


def test_a_complete_service_needs_no_further_pass() -> None:
    cluster = serving()
    assert cluster.plan().prune == ()
    assert cluster.applied().children == cluster.children


def test_what_the_pods_report_is_published() -> None:
    status = serving().status()
    assert status.vector_space is not None
    assert status.model is not None
    assert (status.vector_space.id, status.vector_space.dimensions) == (REPORT["vectorSpace"], 384)
    assert status.vector_space.outputs == ("dense", "hidden")
    assert (status.model.source, status.model.digest) == (REPO, "sha256:abc")
    assert status.endpoint is not None
    assert status.endpoint.url == "http://docs.search.svc"
    assert (status.replicas, status.ready_replicas) == (1, 1)


def test_the_address_for_grpc_is_published_where_there_is_one() -> None:
    endpoint = serving(hub_spec(REPO, service={"grpcPort": 9090})).status().endpoint
    assert endpoint is not None
    assert endpoint.grpc == "docs.search.svc:9090"


def test_model_and_space_stay_said_while_the_only_pod_is_replaced() -> None:
    cluster = serving().started()
    status = cluster.status()
    assert status.vector_space is not None
    assert status.vector_space.id == REPORT["vectorSpace"]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"replicas": 3}, id="replicas"),
        pytest.param({"resources": {"limits": {"memory": "2Gi"}}}, id="resources"),
        pytest.param({"batching": {"maxBatchTokens": 100}}, id="batching"),
        pytest.param({"servedModelName": "other"}, id="the served name"),
        pytest.param({"model": {"maxLength": 128}}, id="the length limit"),
    ],
)
def test_a_change_that_keeps_the_vectors_keeps_the_deployment(change: dict[str, Any]) -> None:
    cluster = serving()
    after = cluster.changed(hub_spec(REPO, **change)).applied()
    assert after.names("Deployment") == cluster.names("Deployment")
    assert after.conditions()["Ready"].reason != "PreviousRevisionServing"


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(SECOND, id="another repository"),
        pytest.param(hub_spec(REPO, model={"pooling": "cls"}), id="pooling"),
        pytest.param(hub_spec(REPO, model={"dimensions": 64}), id="dimensions"),
        pytest.param(hub_spec(REPO, promptName="query"), id="default prompt"),
        pytest.param({"model": {"source": {"huggingFace": {"repo": REPO, "revision": "v2"}}}}, id="revision"),
        pytest.param({"model": {"source": {"volume": {"claimName": "c"}}}}, id="another kind of source"),
    ],
)
def test_a_change_of_the_vectors_gets_a_deployment_beside_the_old_one(spec: dict[str, Any]) -> None:
    cluster = serving()
    after = cluster.changed(spec).applied()
    assert len(after.names("Deployment")) == 2
    assert after.service_revision() == cluster.service_revision()


def test_the_text_of_the_default_prompt_belongs_to_the_revision() -> None:
    first = hub_spec(promptName="query", prompts={"query": "query: "})
    second = hub_spec(promptName="query", prompts={"query": "search: "})
    assert Cluster().revision(first) != Cluster().revision(second)


def test_the_old_model_serves_until_the_new_one_is_complete() -> None:
    cluster = serving().changed(SECOND).applied().started()
    conditions = cluster.conditions()
    assert cluster.applied().service_revision() == cluster.revision(FIRST)
    assert (conditions["Ready"].status, conditions["Ready"].reason) == ("True", "PreviousRevisionServing")
    assert conditions["Reconciling"].status == "True"


def test_the_switch_is_one_write_and_the_old_deployment_outlives_it() -> None:
    complete = serving().changed(SECOND).applied().rolled_out()
    switched = complete.applied()
    assert switched.service_revision() == complete.revision(SECOND)
    assert len(switched.names("Deployment")) == 2
    assert switched.applied().names("Deployment") == [f"docs-{complete.revision(SECOND)}"]


def test_after_the_switch_nothing_of_the_old_model_is_left() -> None:
    after = serving().changed(SECOND).applied().rolled_out().applied().applied()
    assert len(after.config_files()) == 2, "its pods still run and mount it"
    without_old = after.rolled_out(SECOND)
    without_old = type(without_old)(
        without_old.resource,
        without_old.children,
        tuple(p for p in without_old.pods if _is(p, without_old, SECOND)),
    )
    assert len(without_old.applied().config_files()) == 1
    old = Cluster().revision(FIRST)
    assert [name for name in without_old.applied().names("ConfigMap") if old in name] == []


def _is(pod: dict[str, Any], cluster: Cluster, spec: dict[str, Any]) -> bool:
    return bool(pod["metadata"]["labels"]["embedserve.dev/revision"] == cluster.revision(spec))


def test_a_new_model_with_too_few_pods_does_not_take_over() -> None:
    cluster = serving().changed({**SECOND, "replicas": 2}).applied().rolled_out()
    deployment = next(c for c in cluster.children if c["metadata"]["name"].endswith(cluster.revision(SECOND)))
    deployment["status"]["availableReplicas"] = 1
    assert cluster.applied().service_revision() == cluster.revision(FIRST)


def test_a_new_model_that_cannot_come_up_takes_nothing_away_and_says_why() -> None:
    cluster = serving().changed(SECOND).applied().started(NOT_FOUND)
    conditions = cluster.conditions()
    assert cluster.applied().service_revision() == cluster.revision(FIRST)
    assert conditions["Ready"].status == "True"
    assert "ModelNotFound: no repository acme/missing" in conditions["Ready"].message
    assert conditions["Stalled"].reason == "ModelNotFound"
    assert "Reconciling" not in conditions
    model = cluster.status().model
    assert model is not None
    assert model.source == REPO, "the status tells what is served"


def test_going_back_ends_the_attempt() -> None:
    cluster = serving().changed(SECOND).applied().started(NOT_FOUND).changed(FIRST).applied()
    assert cluster.names("Deployment") == [f"docs-{cluster.revision(FIRST)}"]
    assert set(cluster.conditions()) == {"Ready"}


def test_a_second_change_in_the_middle_of_the_first_drops_the_first() -> None:
    cluster = serving().changed(SECOND).applied().started().changed(THIRD).applied()
    revisions = {cluster.revision(FIRST), cluster.revision(THIRD)}
    assert cluster.names("Deployment") == sorted(f"docs-{revision}" for revision in revisions)
    assert cluster.service_revision() == cluster.revision(FIRST)


def test_a_model_that_never_worked_does_not_hold_up_its_successor() -> None:
    broken = Cluster(resource(FIRST)).applied().started(NOT_FOUND)
    after = broken.changed(SECOND).applied()
    assert after.service_revision() == after.revision(SECOND)
    assert after.applied().names("Deployment") == [f"docs-{after.revision(SECOND)}"]


def test_a_model_whose_source_is_away_for_a_while_is_kept() -> None:
    waiting = Cluster(resource(FIRST)).applied().started(UNAVAILABLE)
    assert waiting.changed(SECOND).applied().service_revision() == waiting.revision(FIRST)


def test_a_deleted_service_comes_back_pointing_at_what_it_pointed_at() -> None:
    cluster = serving().changed(SECOND).applied().started().without("Service")
    after = cluster.applied()
    assert after.service_revision() == cluster.revision(FIRST)
    assert len(after.names("Deployment")) == 2


def test_when_the_old_deployment_is_deleted_in_the_middle_the_new_one_takes_over_once_it_is_proved() -> None:
    cluster = serving().changed(SECOND).applied().started()
    old = f"docs-{cluster.revision(FIRST)}"
    remaining = tuple(c for c in cluster.children if c["metadata"]["name"] != old)
    alone = type(cluster)(cluster.resource, remaining, ()).applied()
    assert alone.service_revision() == cluster.revision(FIRST)
    assert alone.names("Deployment") == [f"docs-{cluster.revision(SECOND)}"]
    report = {**REPORT, "vectorSpace": "vs1-fedcba9876543210fedc"}
    assert alone.rolled_out(report=report).applied().service_revision() == cluster.revision(SECOND)


def test_a_config_map_outlives_the_pods_of_the_older_template() -> None:
    cluster = serving().changed(hub_spec(REPO, batching={"maxBatchTokens": 64})).applied()
    assert len(cluster.config_files()) == 2
    assert len(cluster.rolled_out().applied().config_files()) == 1


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        pytest.param(hub_spec(suspend=True, replicas=3), "Suspended", id="suspended"),
        pytest.param(hub_spec(replicas=0), "ScaledToZero", id="no replicas"),
    ],
)
def test_a_service_that_should_have_no_pods_has_what_it_should_have(spec: dict[str, Any], want: str) -> None:
    conditions = serving().changed(spec).applied().rolled_out().conditions()
    assert set(conditions) == {"Ready"}
    assert (conditions["Ready"].status, conditions["Ready"].reason) == ("True", want)


def test_a_spec_that_cannot_be_read_changes_nothing_and_says_so() -> None:
    changed = serving().changed({"model": {"source": {"carrierPigeon": {}}}})
    plan, by_type = changed.plan(), changed.conditions()
    assert (plan.children, plan.prune) == ((), ())
    assert by_type["Stalled"].reason == "InvalidSpec"
    assert "spec.model.source.carrierPigeon" in by_type["Stalled"].message
    assert changed.status().vector_space is not None


def test_the_user_is_told_how_far_the_pods_are() -> None:
    fetching = {"name": "fetch", "state": {"running": {}}}
    cluster = Cluster(resource(hub_spec(replicas=2))).applied().started(fetching)
    assert cluster.conditions()["Ready"].message == "0 of 2 replicas are ready (2 fetching the model)"
    loading = cluster.started(fetched(), containerStatuses=[{"name": "runtime", "state": {"running": {}}}])
    assert loading.conditions()["Ready"].message == "0 of 2 replicas are ready (2 loading it)"


def test_children_of_another_owner_are_neither_used_nor_pruned() -> None:
    cluster = serving()
    foreign = {
        "kind": "Service",
        "metadata": {"name": "foreign", "uid": "f", "labels": {"embedserve.dev/service": "docs"}},
    }
    with_foreign = type(cluster)(cluster.resource, (*cluster.children, foreign), cluster.pods)
    assert with_foreign.plan().prune == ()


@pytest.mark.parametrize(
    ("message", "want"),
    [
        ('pods "docs-x" is forbidden: exceeded quota: team, requested: pods=1', "QuotaExceeded"),
        ('pods "docs-x" is forbidden: violates PodSecurity', "PodsNotCreated"),
    ],
)
def test_pods_that_the_api_server_refuses_are_told_with_its_words(message: str, want: str) -> None:
    cluster = Cluster().applied().started()
    deployment = next(c for c in cluster.children if c["kind"] == "Deployment")
    deployment["status"]["conditions"] = [{"type": "ReplicaFailure", "status": "True", "message": message}]
    ready = type(cluster)(cluster.resource, cluster.children).conditions()["Ready"]
    assert (ready.reason, ready.message) == (want, message)


def test_a_service_with_monitoring_gets_its_monitor_only_where_there_is_such_a_kind() -> None:
    spec = hub_spec(monitoring={"serviceMonitor": {"labels": {"release": "x"}}})
    without, with_it = (
        Cluster(
            resource(spec), facts=ClusterState(optional_kinds=frozenset(["ServiceMonitor"] if there else []))
        )
        .applied()
        .names("ServiceMonitor")
        for there in (False, True)
    )
    assert (without, with_it) == ([], ["docs"])


def test_nobody_fetches_over_the_network_when_the_model_is_on_a_volume() -> None:
    spec = {"model": {"source": {"volume": {"claimName": "models"}}}}
    (policy,) = [c for c in Cluster(resource(spec)).plan().children if c["kind"] == "NetworkPolicy"]
    assert [rule["ports"][0]["port"] for rule in policy["spec"]["egress"]] == [53, 8082], "DNS and each other"
    waiting = serving().changed(spec).applied().started()
    (policy,) = [c for c in waiting.plan().children if c["kind"] == "NetworkPolicy"]
    assert len(policy["spec"]["egress"]) == 3, "pods of the model before may have to fetch again"


def test_the_budget_comes_with_the_second_pod_and_goes_with_it() -> None:
    two = Cluster(resource(hub_spec(replicas=2))).applied()
    assert two.names("PodDisruptionBudget") == ["docs"]
    assert two.changed(hub_spec(replicas=1)).applied().names("PodDisruptionBudget") == []


def test_a_template_does_not_depend_on_how_many_pods_there_are() -> None:
    """Else scaling would restart every pod."""
    single, double = (
        next(c for c in Cluster(resource(hub_spec(replicas=n))).plan().children if c["kind"] == "Deployment")
        for n in (1, 2)
    )
    assert single["spec"]["template"] == double["spec"]["template"]
