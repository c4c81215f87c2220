"""A Job that reads how large a model is before its first pods, where each pod fetches for itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from embedserve_operator.kube.objects import Manifest
from embedserve_operator.kube.views.resource import EmbeddingServiceObject
from embedserve_operator.observe.state import ReceivedObjects, observe
from embedserve_operator.plan import make_plan
from tests.operator.builders import OTHER_REPO, REPO, SETTINGS, Cluster, hub_spec, resource
from tests.operator.cache_builders import cached, ended, failed, retrying, running, started, succeeded
from tests.operator.manifests.test_resources import PLANNED, find_container, find_volume

PLANNING = replace(SETTINGS, plans_models=True)
SIZE = {name: PLANNED[name] for name in ("source", "revision", "sizeBytes", "memory")}
"""What the Job reports: no more than what a plan is made of."""
LIMIT = "2560Mi"
"""The memory of `PLANNED`."""


def begin(spec: dict[str, Any] | None = None) -> Cluster:
    """A new service, while its Job runs."""
    return started(replace(Cluster(resource(spec or hub_spec())), settings=PLANNING))


def end(cluster: Cluster) -> Cluster:
    """After the Job that runs has ended well, and the next passes."""
    return started(succeeded(cluster, {"model": SIZE}))


def find_job(cluster: Cluster) -> Manifest:
    (job,) = cluster.jobs
    return job


def test_pods_wait_for_the_job_and_ask_for_what_it_has_read() -> None:
    cluster = begin()
    assert not cluster.names("Deployment")
    condition = cluster.conditions()["Reconciling"]
    assert condition.reason == "PreparingModel"
    assert condition.message.endswith("is reading how large the model is")
    planned = end(cluster)
    amounts = {"memory": LIMIT, "ephemeral-storage": "1536Mi"}
    assert find_container(planned, "runtime")["resources"] == {"limits": amounts, "requests": amounts}
    assert find_volume(planned, "models")["emptyDir"] == {"sizeLimit": "128Mi"}
    plan = planned.status().plan
    assert plan is not None
    assert (plan.state, plan.size_bytes) == ("Succeeded", SIZE["sizeBytes"])
    assert plan.memory is not None


def test_the_job_runs_the_plan_where_the_pods_will_run_with_the_secrets_of_a_fetch_and_writes_nothing() -> (
    None
):
    source = {"huggingFace": {"repo": REPO, "tokenSecretRef": {"name": "hub", "key": "token"}}}
    spec = {"model": {"source": source}, "pod": {"nodeSelector": {"pool": "cheap"}}}
    job = find_job(begin(spec))
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"] == ["plan", "--config", "/etc/embedserve/runtime.yaml"]
    assert "EMBEDSERVE_MODEL__TOKEN" in {variable["name"] for variable in container["env"]}
    amounts = {"memory": "512Mi", "ephemeral-storage": "640Mi"}
    assert container["resources"] == {"limits": amounts, "requests": amounts}
    assert pod["nodeSelector"] == {"pool": "cheap"}
    assert all("persistentVolumeClaim" not in volume for volume in pod["volumes"])
    assert job["spec"]["activeDeadlineSeconds"] == 300


def test_what_was_read_restarts_no_pod_and_stays_when_the_job_is_gone() -> None:
    cluster = end(begin())
    (before,) = [child for child in cluster.children if child["kind"] == "Deployment"]
    later = replace(cluster, jobs=(), job_pods=()).rolled_out(report=PLANNED).applied().published()
    (after,) = [child for child in later.children if child["kind"] == "Deployment"]
    assert after["spec"]["template"] == before["spec"]["template"]
    assert later.status().plan == cluster.status().plan
    assert not later.plan().jobs_to_create
    assert not later.published().plan().jobs_to_create


@pytest.mark.parametrize(
    "give_up",
    [
        failed,
        lambda cluster: failed(cluster, "UnsupportedArchitecture", retryable=False),
        lambda cluster: retrying(cluster, "ModelNotFound", retryable=False),
        lambda cluster: ended(cluster, running(cluster), "Failed", {"exitCode": 2, "message": ""}),
    ],
    ids=["the source is away", "it cannot be read", "a try that no other will better", "an older runtime"],
)
def test_pods_start_without_a_plan_that_cannot_be_made_and_say_why_themselves(
    give_up: Callable[[Cluster], Cluster],
) -> None:
    cluster = started(give_up(begin()))
    assert cluster.names("Deployment")
    assert "memory" not in find_container(cluster, "runtime").get("resources", {}).get("limits", {})
    assert not cluster.plan().jobs_to_create
    assert "Stalled" not in cluster.conditions()
    assert find_container(cluster, "fetch")["resources"]["limits"]["memory"] == "512Mi"


def test_a_try_that_another_may_better_is_waited_for_with_its_cause() -> None:
    cluster = started(retrying(begin(), "SourceUnavailable", retryable=True))
    assert not cluster.names("Deployment")
    assert cluster.conditions()["Reconciling"].reason == "SourceUnavailable"


def test_a_job_that_pods_did_not_wait_for_is_taken_away() -> None:
    cluster = started(retrying(begin(), "ModelNotFound", retryable=False))
    assert not cluster.jobs


def test_another_model_is_planned_while_the_old_one_serves() -> None:
    served = end(begin()).rolled_out(report=PLANNED).applied().published()
    changed = started(replace(served, jobs=(), job_pods=()).changed(hub_spec(OTHER_REPO)))
    assert len(changed.names("Deployment")) == 1
    assert changed.conditions()["Ready"].status == "True"
    after = end(changed)
    assert len(after.names("Deployment")) == 2


@pytest.mark.parametrize(
    "cluster",
    [
        pytest.param(replace(begin(), settings=SETTINGS), id="the chart does not ask for it"),
        pytest.param(begin(hub_spec(suspend=True)), id="no pod is wanted"),
    ],
)
def test_pods_wait_for_nothing_where(cluster: Cluster) -> None:
    fresh = started(replace(cluster, jobs=(), job_pods=(), children=()))
    assert fresh.names("Deployment")
    assert not fresh.jobs


def test_where_a_cache_is_filled_first_the_fetch_tells_it() -> None:
    (job,) = begin(cached()).jobs
    assert job["metadata"]["labels"]["app.kubernetes.io/component"] == "fetch"


def test_pods_that_run_are_held_back_by_nothing_when_the_chart_begins_to_ask_for_it() -> None:
    served = Cluster(resource(hub_spec())).applied().rolled_out().applied().published()
    upgraded = replace(served, settings=PLANNING)
    assert not upgraded.plan().jobs_to_create
    assert upgraded.applied().children == served.applied().children


def test_what_is_rendered_without_a_cluster_has_job_and_pods() -> None:
    service = EmbeddingServiceObject.parse(resource(hub_spec()))
    plan = make_plan(observe(ReceivedObjects(service)), PLANNING)
    assert len(plan.jobs_to_create) == 1
    assert [child["kind"] for child in plan.children].count("Deployment") == 1
