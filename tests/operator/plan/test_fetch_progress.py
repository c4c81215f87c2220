"""A fetch under way is asked how far it is, now and again, and the status says what it answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from embedserve_operator.api.status import Fetching
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.kube.references import ObjectKey
from embedserve_operator.queue.throttle import Throttle
from embedserve_operator.state.pods import FetchProgress, PodReplies
from tests.operator.builders import OTHER_REPO, REPO, Cluster, hub_spec, resource
from tests.operator.cache_builders import (
    VOLUME,
    cached,
    claim,
    running,
    serving,
    started,
    succeeded,
    with_claim,
)

HALF = FetchProgress("fetching", 50, 100, 10, 5)
LESS = FetchProgress("fetching", 30, 100, 10, 7)
FETCHES = {"name": "fetch", "state": {"running": {}}}
PENDING = {"name": "fetch", "state": {"waiting": {"reason": "PodInitializing"}}}


def with_pod_of_job(
    cluster: Cluster, *, container: Mapping[str, Any] = FETCHES, ip: str = "10.0.0.9"
) -> Cluster:
    """While the Job that runs has a pod."""
    job = running(cluster)
    name = job["metadata"]["name"]
    labels = {**job["spec"]["template"]["metadata"]["labels"], "batch.kubernetes.io/job-name": name}
    pod: Manifest = {
        "kind": "Pod",
        "metadata": {"name": "loader", "namespace": "search", "uid": "loader", "labels": labels},
        "spec": job["spec"]["template"]["spec"],
        "status": {"phase": "Running", "podIP": ip, "containerStatuses": [dict(container)]},
    }
    return replace(cluster, job_pods=(pod,))


def report_progress(cluster: Cluster, **progress_by_uid: FetchProgress) -> Cluster:
    """Return the cluster after pods, by UID, have reported their progress."""
    return replace(
        cluster,
        replies={f"{uid}/0": PodReplies(progress=progress) for uid, progress in progress_by_uid.items()},
    )


def fetching_of(cluster: Cluster) -> Fetching | None:
    model = cluster.status().model
    return model.fetching if model is not None else None


def loading(cluster: Cluster) -> Cluster:
    """While the pods of a service without a cache fetch for themselves."""
    return cluster.applied().started(FETCHES, podIP="10.0.0.2")


def test_the_pod_of_the_job_is_asked_and_its_answer_published() -> None:
    cluster = with_pod_of_job(started(with_claim(cached())))
    assert [(fetching_pod.name, fetching_pod.address) for fetching_pod in cluster.plan().fetching_pods] == [
        ("loader", "10.0.0.9")
    ]
    assert fetching_of(cluster) is None
    reporting = report_progress(cluster, loader=HALF)
    assert fetching_of(reporting) == Fetching(
        phase="fetching", bytes_done=50, bytes_total=100, bytes_per_second=10, seconds_remaining=5
    )
    assert reporting.status().model is not None
    assert reporting.published().applied() == reporting.published(), "numbers change the status alone"


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param({"container": PENDING}, id="not started"),
        pytest.param({"ip": ""}, id="without an address"),
        pytest.param({"container": {"name": "convert", "state": {"running": {}}}}, id="converting"),
    ],
)
def test_who_cannot_answer_is_not_asked(pod: dict[str, Any]) -> None:
    assert with_pod_of_job(started(with_claim(cached())), **pod).plan().fetching_pods == ()


def test_pods_that_fetch_for_themselves_are_asked_and_the_slowest_counts() -> None:
    cluster = loading(Cluster(resource(hub_spec(replicas=2))))
    names = [fetching_pod.run_id.removesuffix("/0") for fetching_pod in cluster.plan().fetching_pods]
    assert len(names) == 2
    fetching = fetching_of(report_progress(cluster, **{names[0]: HALF, names[1]: LESS}))
    assert fetching is not None
    assert fetching.bytes_done == LESS.bytes_done


def test_of_many_pods_a_few_are_asked() -> None:
    assert len(loading(Cluster(resource(hub_spec(replicas=40)))).plan().fetching_pods) == 8


def test_another_services_job_on_the_same_claim_is_asked_too() -> None:
    first = started(with_claim(cached({"claimName": "models"}), claim("ReadWriteOnce")))
    foreign_job = {**running(first), "metadata": {**running(first)["metadata"], "ownerReferences": []}}
    second = with_pod_of_job(replace(first, jobs=(foreign_job,)))
    assert [fetching_pod.name for fetching_pod in second.plan().fetching_pods] == ["loader"]


def test_the_model_that_serves_stays_said_while_another_one_is_fetched() -> None:
    cluster = started(serving(cached()).changed(hub_spec(OTHER_REPO, cache=VOLUME)))
    model = report_progress(with_pod_of_job(cluster), loader=HALF).status().model
    assert model is not None
    assert model.source == REPO
    assert model.fetching is not None


def test_after_the_fetch_nothing_is_asked_and_nothing_said() -> None:
    fetching = report_progress(with_pod_of_job(started(with_claim(cached()))), loader=HALF).published()
    assert fetching_of(fetching) is not None
    fetched = succeeded(replace(fetching, job_pods=()))
    assert fetched.plan().fetching_pods == ()
    assert fetching_of(fetched) is None


def test_a_spec_that_is_refused_has_no_fetch_under_way() -> None:
    fetching = report_progress(with_pod_of_job(started(with_claim(cached()))), loader=HALF).published()
    refused = fetching.changed(cached({"volume": {"size": "1Gi", "accessModes": ["ReadWriteMany"]}}))
    assert refused.conditions()["Stalled"].reason == "VolumeClaimConflict"
    assert fetching_of(refused) is None


def test_the_operator_is_let_in_to_ask_and_nobody_else() -> None:
    (policy,) = [
        child
        for child in started(with_claim(cached())).children
        if child["kind"] == "NetworkPolicy" and child["metadata"]["name"] == "docs.fetch"
    ]
    (rule,) = policy["spec"]["ingress"]
    assert rule["ports"] == [{"port": 8081, "protocol": "TCP"}]
    assert all("namespaceSelector" in peer for peer in rule["from"])


def test_one_resource_is_looked_at_after_the_pause_and_many_at_the_rate() -> None:
    now = [0.0]
    throttle = Throttle(lambda: now[0], pause=5.0, rate=2.0)
    first, *other_keys = [ObjectKey("search", f"docs-{number}") for number in range(20)]
    assert throttle.seconds_until_due(first) == 0.0
    assert throttle.record(first) == 5.0
    now[0] = 3.0
    assert throttle.seconds_until_due(first) == 2.0
    for key in other_keys:
        throttle.record(key)
    assert throttle.seconds_until_due(first) == 7.0, "twenty at two a second are ten seconds for each"
    for key in other_keys:
        throttle.forget(key)
    assert throttle.seconds_until_due(first) == 2.0
