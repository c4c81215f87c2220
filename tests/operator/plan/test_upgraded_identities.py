"""A service of the last release, whose status and pods name its vector space `vs1-`, is upgraded to an image whose pods
name the same space `vs2-`: that is not a change of the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from embedserve_operator.settings import RuntimeImage
from tests.operator.builders import REPORT, SETTINGS, Cluster, hub_spec, ready, resource
from tests.operator.cache_builders import cached, started, succeeded

OLD = REPORT["vectorSpace"]
NEW = "vs2-0123456789abcdef0123"
RENAMED: dict[str, Any] = {**REPORT, "vectorSpace": NEW, "formerVectorSpace": OLD}
OTHER_MODEL: dict[str, Any] = {**RENAMED, "formerVectorSpace": "vs1-fedcba9876543210fedc"}
UPGRADED = replace(SETTINGS, images={"cpu": RuntimeImage("embedserve-runtime:next-cpu")})
POLICIES: list[dict[str, Any]] = [
    {},
    {"onNewVectorSpace": "Refuse"},
    {"hold": True},
    {"onNewVectorSpace": "InPlace"},
]
PINNED = {"source": {"huggingFace": {"repo": REPORT["source"], "revision": REPORT["revision"]}}}


def serving(spec: dict[str, Any]) -> Cluster:
    return Cluster(resource(spec)).applied().rolled_out().applied().published()


def upgraded(spec: dict[str, Any], *, replaced: int, report: dict[str, Any] = RENAMED) -> Cluster:
    """Return the service with the new image, after so many of its three pods were replaced."""
    cluster = replace(serving({**spec, "replicas": 3}), settings=UPGRADED).applied()
    pods = [ready(pod, report) if number < replaced else pod for number, pod in enumerate(cluster.pods)]
    return replace(cluster, pods=tuple(pods))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("replaced", [0, 1, 2, 3])
def test_no_model_change_begins_and_none_is_refused(policy: dict[str, Any], replaced: int) -> None:
    cluster = upgraded(hub_spec(rollout=policy), replaced=replaced)
    plan, status = cluster.plan(), cluster.status()
    assert cluster.conditions()["Ready"].status == "True"
    assert "Stalled" not in cluster.conditions()
    assert status.vector_space is not None
    assert status.vector_space.id == (OLD if replaced < 3 else NEW)
    assert status.vector_space.previous == ()
    assert status.rollout is None
    assert len(cluster.names("Deployment")) == 1
    assert plan.jobs_to_create == ()
    (service,) = [
        child for child in plan.children if child["kind"] == "Service" and child["metadata"]["name"] == "docs"
    ]
    assert service["spec"]["selector"]["embedserve.dev/revision"] == cluster.revision()


def test_the_former_name_does_not_stay_in_the_status() -> None:
    cluster = upgraded(hub_spec(), replaced=3).published().applied().published()
    status = cluster.status()
    assert status.vector_space is not None
    assert (status.vector_space.id, status.vector_space.previous) == (NEW, ())
    assert set(cluster.plan().messages) == set()


@pytest.mark.parametrize("policy", [{"onNewVectorSpace": "Refuse"}, {"hold": True}, {}])
def test_a_revision_of_the_same_space_takes_over_under_its_new_name(policy: dict[str, Any]) -> None:
    then = hub_spec(model=PINNED, rollout=policy)
    moving = replace(serving(hub_spec(rollout=policy)), settings=UPGRADED).changed(then).applied()
    moved = moving.rolled_out(report=RENAMED).applied().rolled_out(report=RENAMED).applied()
    assert "Stalled" not in moved.conditions()
    assert moved.observed().serving_revision == moved.revision(then)
    status = moved.status()
    assert status.vector_space is not None
    assert (status.vector_space.id, status.vector_space.previous) == (NEW, ())


def test_another_space_is_still_another_one() -> None:
    cluster = upgraded(hub_spec(), replaced=1, report=OTHER_MODEL)
    assert cluster.conditions()["Stalled"].reason == "MixedVectorSpaces"


def test_what_a_job_reports_of_the_former_name_reaches_the_pods() -> None:
    cluster = started(succeeded(started(Cluster(resource(cached()))), {"model": RENAMED}))
    status = cluster.status()
    assert status.fetch is not None
    assert status.fetch.former_vector_space == OLD
    (deployment,) = [child for child in cluster.children if child["kind"] == "Deployment"]
    assert OLD in deployment["spec"]["template"]["metadata"]["annotations"]["embedserve.dev/model"]
