"""A status that is lost, edited or written by a newer operator: nothing that is kept or serves goes for that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from embedserve_operator.api.times import format_moment
from tests.operator.builders import NOW, OTHER_REPO, REPORT, Cluster, hub_spec, resource

OTHER: dict[str, Any] = {**REPORT, "source": OTHER_REPO, "vectorSpace": "vs1-fedcba9876543210fedc"}
DAY = 24 * 3600
REPLACED_AT = "embedserve.dev/replaced-at"


def serving() -> Cluster:
    return Cluster(resource(hub_spec())).applied().rolled_out().applied().published()


def switched(**rollout: Any) -> Cluster:
    """After a change of the model, with the old one kept."""
    changed = serving().changed(hub_spec(OTHER_REPO, rollout=rollout)).applied().rolled_out(report=OTHER)
    return changed.applied().published().applied().rolled_out(report=OTHER).applied().published()


def with_status(cluster: Cluster, status: dict[str, Any]) -> Cluster:
    return replace(cluster, resource={**cluster.resource, "status": status})


LOSSES: dict[str, Callable[[Cluster], Cluster]] = {
    "lost": lambda cluster: with_status(cluster, {}),
    "of a newer operator": lambda cluster: with_status(
        cluster, {**cluster.resource["status"], "fieldOfTheFuture": 1}
    ),
    "without history": lambda cluster: with_status(
        cluster,
        {
            **cluster.resource["status"],
            "vectorSpace": {**cluster.resource["status"]["vectorSpace"], "previous": []},
        },
    ),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_what_is_kept_stays_for_its_time_and_no_longer(loss: Callable[[Cluster], Cluster]) -> None:
    before = switched()
    assert len(before.names("Deployment")) == 2
    later = replace(loss(replace(before, now=NOW + DAY - 1)), now=NOW + DAY - 1)
    assert later.plan().prune == ()
    space = later.status().vector_space
    assert space is not None
    assert [(previous.id, previous.kept_until) for previous in space.previous] == [
        (REPORT["vectorSpace"], format_moment(NOW + DAY))
    ]
    assert later.plan().wake_after == 1
    over = replace(loss(before), now=NOW + DAY).applied()
    assert over.names("Deployment") == [f"docs-{before.revision()}"]


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_what_serves_while_another_is_held_stays(loss: Callable[[Cluster], Cluster]) -> None:
    held_cluster = (
        serving().changed(hub_spec(OTHER_REPO, rollout={"hold": True})).applied().rolled_out(report=OTHER)
    )
    held_cluster = held_cluster.published().applied().published()
    assert loss(held_cluster).plan().prune == ()
    assert loss(held_cluster).applied().service_revision() == held_cluster.revision(hub_spec())
    without_service = replace(
        held_cluster,
        children=tuple(
            received for received in held_cluster.children if received["metadata"]["name"] != "docs"
        ),
    )
    assert loss(without_service).applied().service_revision() == held_cluster.revision(hub_spec())


def test_that_a_model_was_replaced_is_written_before_the_service_leads_elsewhere() -> None:
    ready = serving().changed(hub_spec(OTHER_REPO)).applied().rolled_out(report=OTHER)
    (time,) = ready.plan().replacement_times
    assert time.deployment == f"docs-{ready.revision(hub_spec())}"
    written = ready.applied()
    # The operator ended before the Service was written, and the change is taken back.
    service = tuple(
        received
        for received in ready.children
        if received["kind"] == "Service" and received["metadata"]["name"] == "docs"
    )
    other_children = tuple(
        received
        for received in written.children
        if not (received["kind"] == "Service" and received["metadata"]["name"] == "docs")
    )
    back = replace(written, children=(*other_children, *service)).changed(hub_spec())
    assert [
        (replacement.deployment, replacement.replaced_at) for replacement in back.plan().replacement_times
    ] == [(time.deployment, None)]
    assert back.applied().plan().replacement_times == ()


def test_the_way_back_forgets_the_time_only_once_the_service_leads_back() -> None:
    cluster = switched()
    back = cluster.changed(hub_spec())
    old = f"docs-{cluster.revision(hub_spec())}"
    assert [replacement.deployment for replacement in back.plan().replacement_times] == [
        f"docs-{cluster.revision()}"
    ]
    assert [
        (replacement.deployment, replacement.replaced_at)
        for replacement in back.applied().plan().replacement_times
    ] == [(old, None)]


def test_the_time_of_what_an_earlier_operator_kept_is_taken_from_the_status() -> None:
    cluster = switched()
    blank = replace(
        cluster,
        children=tuple(
            {
                **received,
                "metadata": {
                    **received["metadata"],
                    "annotations": {
                        k: v for k, v in received["metadata"]["annotations"].items() if k != REPLACED_AT
                    },
                },
            }
            for received in cluster.children
        ),
        now=NOW + 60,
    )
    (time,) = blank.plan().replacement_times
    assert time.replaced_at == cluster.resource["status"]["vectorSpace"]["previous"][0]["replacedAt"]


def test_a_model_that_never_had_the_name_is_not_kept() -> None:
    third = hub_spec(OTHER_REPO, model={"pooling": "cls"})
    abandoned = serving().changed(hub_spec(OTHER_REPO)).applied().rolled_out(report=OTHER)
    abandoned = with_status(abandoned, {}).changed(third).applied()
    assert f"docs-{abandoned.revision(hub_spec(OTHER_REPO))}" not in abandoned.names("Deployment")
