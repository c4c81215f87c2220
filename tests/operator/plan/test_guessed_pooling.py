"""A model of which no file says how to pool is served with the mean, and a condition says that this is a guess."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from embedserve_operator.status.events import build_events
from embedserve_operator.status.publisher import add_times
from tests.operator.builders import REPO, REPORT, Cluster, hub_spec, resource
from tests.operator.cache_builders import cached, started, succeeded
from tests.operator.moments import LATER

GUESSED: dict[str, Any] = {**REPORT, "guessesPooling": True}
STATED = hub_spec(model={"pooling": "mean"})


def served(report: dict[str, Any]) -> Cluster:
    return Cluster(resource(hub_spec())).applied().rolled_out(report=report).published()


def test_the_condition_names_the_model_and_the_field_that_states_the_pooling() -> None:
    cluster = served(GUESSED)
    found = cluster.conditions()["PoolingGuessed"]
    assert (found.status, found.reason) == ("True", "MeanGuessed")
    assert REPO in found.message
    assert "spec.model.pooling" in found.message
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
    told = build_events(observed.resource, add_times(cluster.plan().status, observed.resource, LATER), LATER)
    assert [event["type"] for event in told if event["reason"] == "MeanGuessed"] == ["Warning"]
    again = cluster.published().observed()
    assert not build_events(again.resource, add_times(cluster.plan().status, again.resource, LATER), LATER)


def test_stating_the_pooling_ends_it_once_the_new_revision_serves() -> None:
    asked = served(GUESSED).changed(STATED).applied()
    assert "PoolingGuessed" in asked.conditions(), "what guesses still serves"
    assert "PoolingGuessed" not in asked.rolled_out().published().applied().conditions()


def test_what_a_job_has_fetched_tells_it_too_and_stays_when_the_job_is_gone() -> None:
    fetched = started(succeeded(started(Cluster(resource(cached()))), {"model": GUESSED}))
    status = fetched.plan().status
    assert status.fetch is not None
    assert status.fetch.guesses_pooling is True
    gone = replace(fetched.published(), jobs=(), job_pods=())
    assert "PoolingGuessed" in gone.conditions()
