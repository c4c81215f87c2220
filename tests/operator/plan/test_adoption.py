"""Children without an owner: `kubectl delete --cascade=orphan` leaves them, and a backup may bring them back so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from embedserve_operator.kube.objects import Manifest
from tests.operator.builders import OTHER_REPO, REPORT, Cluster, hub_spec, resource

OTHER: dict[str, Any] = {**REPORT, "source": OTHER_REPO, "vectorSpace": "vs1-fedcba9876543210fedc"}
NEW_UID = "22222222-2222-2222-2222-222222222222"


def build_serving() -> Cluster:
    return Cluster(resource(hub_spec())).applied().rolled_out().applied().published()


def build_with_previous_space() -> Cluster:
    """After a change of the model, with the old one kept."""
    changed = build_serving().changed(hub_spec(OTHER_REPO)).applied().rolled_out(report=OTHER)
    return changed.applied().published().applied().rolled_out(report=OTHER).applied().published()


def build_held() -> Cluster:
    """While another model is ready and held back."""
    changed = build_serving().changed(hub_spec(OTHER_REPO, rollout={"hold": True}))
    return changed.applied().rolled_out(report=OTHER).published().applied().published()


STATES: dict[str, Callable[[], Cluster]] = {
    "serving": build_serving,
    "a previous space is kept": build_with_previous_space,
    "another model is held": build_held,
}


def _without_owner(child: Manifest) -> Manifest:
    metadata = {name: value for name, value in child["metadata"].items() if name != "ownerReferences"}
    return {**child, "metadata": metadata}


def orphaned_and_created_again(cluster: Cluster) -> Cluster:
    metadata = {**cluster.resource["metadata"], "uid": NEW_UID, "generation": 1}
    created = {**cluster.resource, "metadata": metadata, "status": {}}
    return replace(cluster, resource=created, children=tuple(map(_without_owner, cluster.children)))


def _find_owners(cluster: Cluster) -> dict[str, list[str]]:
    return {
        f"{child['kind']} {child['metadata']['name']}": [
            owner["uid"] for owner in child["metadata"].get("ownerReferences", ())
        ]
        for child in cluster.children
    }


def _find_specs(cluster: Cluster) -> dict[str, Any]:
    return {f"{child['kind']} {child['metadata']['name']}": child.get("spec") for child in cluster.children}


@pytest.mark.parametrize("build", STATES.values(), ids=STATES)
def test_a_resource_that_is_created_again_adopts_the_children_that_were_orphaned(
    build: Callable[[], Cluster],
) -> None:
    before = build()
    adopted = orphaned_and_created_again(before)
    assert adopted.plan().prune == ()
    after = adopted.applied().published().applied()
    assert _find_specs(after) == _find_specs(before), "nothing is restarted"
    assert set(map(tuple, _find_owners(after).values())) == {(NEW_UID,)}
    assert after.conditions()["Ready"].status == "True"
    assert after.service_revision() == before.service_revision()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            {"ownerReferences": [{"kind": "Deployment", "name": "a", "uid": "a", "controller": True}]},
            id="another controller owns it",
        ),
        pytest.param({"labels": {"embedserve.dev/service": "docs"}}, id="this operator did not make it"),
    ],
)
def test_what_belongs_to_somebody_else_is_no_child(change: dict[str, Any]) -> None:
    cluster = orphaned_and_created_again(build_serving())
    foreign = tuple({**child, "metadata": {**child["metadata"], **change}} for child in cluster.children)
    assert replace(cluster, children=foreign).observed().children == ()
