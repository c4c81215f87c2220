"""A model of which no file says how to pool is served with the mean, and a condition says that this is a guess."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from embedserve_operator.status.events import build_events
from tests.operator.builders import REPO, REPORT, Cluster, hub_spec, resource
from tests.operator.cache_builders import cached, started, succeeded
from tests.operator.moments import LATER
from tests.operator.plan.test_export import EXPORTED, fetched

GUESSED: dict[str, Any] = {**REPORT, "guessesPooling": True}
STATED = hub_spec(model={"pooling": "mean"})


def served(report: dict[str, Any]) -> Cluster:
    return Cluster(resource(hub_spec())).applied().rolled_out(report=report).published()


def test_the_condition_names_the_model_and_the_field_that_states_the_pooling() -> None:
    cluster = served(GUESSED)
    condition = cluster.conditions()["PoolingGuessed"]
    assert (condition.status, condition.reason) == ("True", "MeanGuessed")
    assert REPO in condition.message
    assert "spec.model.pooling" in condition.message
    assert cluster.conditions()["Ready"].status == "True"


@pytest.mark.parametrize(
    "report",
    [
        pytest.param({**REPORT, "guessesPooling": False}, id="a file says it"),
        pytest.param(REPORT, id="the runtime is of an older version"),
    ],
)
def test_nothing_is_said_where_nothing_is_known_to_be_guessed(report: dict[str, Any]) -> None:
    assert "PoolingGuessed" not in served(report).conditions()


def test_the_condition_stays_while_pods_have_not_reported_again() -> None:
    assert "PoolingGuessed" in replace(served(GUESSED), pods=()).conditions()


def test_the_condition_is_told_once_as_a_warning() -> None:
    cluster = Cluster(resource(hub_spec())).applied().published().rolled_out(report=GUESSED)
    observed = cluster.observed()
    events = build_events(observed.resource, cluster.status(), LATER)
    assert [event["type"] for event in events if event["reason"] == "MeanGuessed"] == ["Warning"]
    again = cluster.published().observed()
    assert not build_events(again.resource, cluster.published().status(), LATER)


def test_stating_the_pooling_ends_it_once_the_new_revision_serves() -> None:
    stated = served(GUESSED).changed(STATED).applied()
    assert "PoolingGuessed" in stated.conditions(), "what guesses still serves"
    assert "PoolingGuessed" not in stated.rolled_out().published().applied().conditions()


def test_what_a_job_has_fetched_tells_it_too_and_stays_when_the_job_is_gone() -> None:
    cluster = started(succeeded(started(Cluster(resource(cached()))), {"model": GUESSED}))
    status = cluster.status()
    assert status.fetch is not None
    assert status.fetch.guesses_pooling is True
    without_job = replace(cluster.published(), jobs=(), job_pods=())
    assert "PoolingGuessed" in without_job.conditions()


@pytest.mark.parametrize("is_guess", [True, False])
def test_what_torch_exports_tells_it_where_only_the_export_could_know(is_guess: bool) -> None:
    report = {"conversion": {**EXPORTED, "guessesPooling": is_guess}}
    exported = started(succeeded(fetched(), report))
    for cluster in (exported, started(replace(exported.published(), jobs=(), job_pods=()))):
        status = cluster.status()
        assert status.conversion is not None
        assert status.conversion.guesses_pooling is (is_guess or None)
        assert ("PoolingGuessed" in cluster.conditions()) is is_guess
    (deployment,) = [child for child in exported.children if child["kind"] == "Deployment"]
    noted = json.loads(deployment["spec"]["template"]["metadata"]["annotations"]["embedserve.dev/model"])
    assert noted.get("guessesPooling", False) is is_guess, "the pods keep what the Job has found"
