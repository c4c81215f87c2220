"""Upgrades of the operator that change pods: services wait for slots, and what the user edits waits for nobody."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any, get_args

import pytest

from embedserve_operator.manifests.metadata import GENERATION, UPGRADE
from embedserve_operator.plan import make_plan
from embedserve_operator.plan.upgrade_cases import (
    PodsState,
    SlotState,
    TemplateChange,
    UpgradeFacts,
    UpgradeStep,
    decide_upgrade,
)
from embedserve_operator.state.upgrades import NO_UPGRADE, UpgradePhase, UpgradeProgress
from embedserve_operator.status.report import build_status
from tests.operator.builders import OTHER_REPO, REPO, SETTINGS, Cluster, hub_spec, resource
from tests.operator.cache_builders import cached, serving
from tests.operator.plan.stepped import SteppedCluster

EVERY = [
    UpgradeFacts(*values)
    for values in product(
        get_args(UpgradePhase),
        get_args(TemplateChange),
        get_args(PodsState),
        (True, False),
        get_args(SlotState),
    )
]
UPGRADED = UpgradeFacts("", "Upgraded", "Ready", has_ready_pods=True, slot="Free")
BUSY, STOPPED = UpgradeProgress(rolling=5), UpgradeProgress(rolling=1, failed=1)
EDIT = {"resources": {"limits": {"memory": "2Gi"}}}


@pytest.mark.parametrize("facts", EVERY)
def test_every_case_keeps_the_promises(facts: UpgradeFacts) -> None:
    step = decide_upgrade(facts)
    if step in ("Wait", "Stop"):
        assert facts.template == "Upgraded", "what the user edits is never delayed"
        assert facts.phase == "", "who has a slot keeps it"
        assert facts.has_ready_pods, "nothing is gained by keeping pods that do not answer"
        assert facts.slot == {"Wait": "Taken", "Stop": "Stopped"}[step]
    elif step == "Begin":
        assert (facts.phase, facts.template, facts.slot) == ("", "Upgraded", "Free")
    elif step == "Finish":
        assert facts.phase
        assert (facts.template, facts.pods) == ("None", "Ready")
    elif step == "Fail":
        assert facts.phase == "Failed" or facts.pods == "Failing"
        assert facts.template == "None", "another template may mend it"
    elif step == "Roll":
        assert facts.phase
    else:
        assert facts.phase == ""


@pytest.mark.parametrize(
    ("facts", "want"),
    [
        pytest.param(UPGRADED, "Begin", id="a free slot is taken"),
        pytest.param(UPGRADED._replace(slot="Taken"), "Wait", id="too many roll"),
        pytest.param(UPGRADED._replace(slot="Stopped"), "Stop", id="another one has failed"),
        pytest.param(
            UPGRADED._replace(template="Edited", slot="Stopped"), "Unaffected", id="the user's edit"
        ),
        pytest.param(UPGRADED._replace(template="None"), "Unaffected", id="nothing changes"),
        pytest.param(
            UPGRADED._replace(pods="Failing", has_ready_pods=False, slot="Stopped"),
            "Unaffected",
            id="no pod answers: the upgrade may mend it",
        ),
        pytest.param(UPGRADED._replace(phase="Failed", slot="Stopped"), "Roll", id="a release that mends"),
        pytest.param(UpgradeFacts("Rolling", "None", "Starting", True, "Free"), "Roll", id="pods start"),
        pytest.param(UpgradeFacts("Rolling", "None", "Ready", True, "Free"), "Finish", id="pods are ready"),
        pytest.param(UpgradeFacts("Rolling", "None", "Failing", True, "Free"), "Fail", id="pods fail"),
        pytest.param(
            UpgradeFacts("Failed", "None", "Starting", True, "Free"), "Fail", id="a crashed pod starts again"
        ),
        pytest.param(UpgradeFacts("Failed", "None", "Ready", True, "Free"), "Finish", id="it heals"),
    ],
)
def test_when_pods_are_replaced(facts: UpgradeFacts, want: UpgradeStep) -> None:
    assert decide_upgrade(facts) == want


@pytest.mark.parametrize("progress", [NO_UPGRADE, BUSY, STOPPED], ids=["free", "taken", "stopped"])
@pytest.mark.parametrize("is_cached", [False, True], ids=["without a cache", "with a cache"])
def test_another_image_waits_for_a_slot_wherever_the_model_comes_from(
    is_cached: bool, progress: UpgradeProgress
) -> None:
    spec = cached() if is_cached else hub_spec()
    served = (
        serving(spec) if is_cached else Cluster(resource(spec)).applied().rolled_out().applied().published()
    )
    images = {
        name: replace(image, reference=f"{image.reference}-2") for name, image in SETTINGS.images.items()
    }
    upgraded = replace(served, settings=replace(SETTINGS, images=images))
    want = {NO_UPGRADE: "Begin", BUSY: "Wait", STOPPED: "Stop"}[progress]
    assert make_plan(replace(upgraded.observed(), upgrade=progress), upgraded.settings).upgrade == want


# -- one service, write by write


def start(**fields: Any) -> SteppedCluster:
    """A service that serves, before the operator is upgraded."""
    cluster = SteppedCluster(hub_spec(replicas=1, **fields))
    finish(cluster)
    return cluster


def finish(cluster: SteppedCluster) -> None:
    """Run passes until nothing is to be done."""
    for _ in range(20):
        cluster.settle()
        if not cluster.run_pass():
            return
    raise AssertionError("no end")


def template(cluster: SteppedCluster) -> str:
    hash_of_template = cluster.find_template(cluster.serving_revision)
    assert hash_of_template is not None
    return hash_of_template


def phase(cluster: SteppedCluster) -> str:
    """Return what the Deployment that serves says of the upgrade."""
    deployment = cluster.find_deployment(cluster.serving_revision or "")
    assert deployment is not None
    return str(deployment["metadata"]["annotations"].get(UPGRADE, ""))


def conditions(cluster: SteppedCluster) -> dict[str, tuple[str, str]]:
    """Status and reason of the conditions, by type."""
    return {
        condition.type: (condition.status, condition.reason)
        for condition in build_status(*cluster.plan()).conditions
    }


def test_a_service_takes_its_slot_and_gives_it_back() -> None:
    cluster = start()
    before = template(cluster)
    cluster.upgrade_operator("runtime:2")
    assert cluster.plan()[0].upgrade == "Begin"
    cluster.run_pass()
    assert template(cluster) != before
    assert phase(cluster) == "Rolling", "written with the template, so that no death of the operator loses it"
    assert conditions(cluster)["Upgrading"] == ("True", "RollingOut")
    finish(cluster)
    assert phase(cluster) == ""
    assert "Upgrading" not in conditions(cluster)


@pytest.mark.parametrize(
    ("progress", "reason"), [(BUSY, "WaitingForTurn"), (STOPPED, "UpgradeStopped")], ids=["busy", "stopped"]
)
def test_a_service_waits_as_it_is_until_a_slot_is_free(progress: UpgradeProgress, reason: str) -> None:
    cluster = start()
    before = template(cluster)
    cluster.upgrade = progress
    cluster.upgrade_operator("runtime:2")
    finish(cluster)
    assert template(cluster) == before
    assert conditions(cluster) == {"Ready": ("True", "Serving"), "Upgrading": ("True", reason)}
    cluster.upgrade = NO_UPGRADE
    finish(cluster)
    assert template(cluster) != before
    assert conditions(cluster) == {"Ready": ("True", "Serving")}


@pytest.mark.parametrize("progress", [BUSY, STOPPED], ids=["busy", "stopped"])
def test_an_edit_of_the_user_waits_for_nobody(progress: UpgradeProgress) -> None:
    cluster = start()
    before = template(cluster)
    cluster.upgrade = progress
    cluster.upgrade_operator("runtime:2")
    finish(cluster)
    cluster.apply({**cluster.spec, **EDIT})
    finish(cluster)
    assert template(cluster) != before
    assert conditions(cluster) == {"Ready": ("True", "Serving")}


def test_an_edit_that_changes_no_pod_is_done_and_does_not_end_the_wait_of_the_next_upgrade() -> None:
    cluster = start()
    cluster.apply({**cluster.spec, "service": {"annotations": {"a": "b"}}})
    finish(cluster)
    before = template(cluster)
    cluster.upgrade = BUSY
    cluster.upgrade_operator("runtime:2")
    finish(cluster)
    assert template(cluster) == before


def test_pods_that_fail_after_an_upgrade_say_so_until_another_release_mends_them() -> None:
    cluster = start()
    cluster.upgrade_operator("runtime:2")
    cluster.broken = frozenset({REPO})
    finish(cluster)
    assert phase(cluster) == "Failed"
    assert conditions(cluster)["Upgrading"] == ("True", "UpgradeFailed")
    cluster.broken = frozenset()
    cluster.upgrade_operator("runtime:3")
    finish(cluster)
    assert phase(cluster) == ""
    assert conditions(cluster) == {"Ready": ("True", "Serving")}


def test_what_serves_while_another_model_is_prepared_waits_for_a_slot_too() -> None:
    cluster = start()
    cluster.broken = frozenset({OTHER_REPO})
    cluster.apply({**cluster.spec, "model": hub_spec(OTHER_REPO)["model"]})
    finish(cluster)
    before = template(cluster)
    cluster.upgrade = BUSY
    cluster.upgrade_operator("runtime:2")
    finish(cluster)
    assert template(cluster) == before
    assert conditions(cluster)["Upgrading"] == ("True", "WaitingForTurn")
    cluster.upgrade = NO_UPGRADE
    finish(cluster)
    assert template(cluster) != before
    assert phase(cluster) == ""


def test_a_deployment_of_an_operator_that_did_not_say_what_it_was_made_from_waits_too() -> None:
    cluster = start()
    deployment = cluster.find_deployment(cluster.serving_revision or "")
    assert deployment is not None
    del deployment["metadata"]["annotations"][GENERATION]
    before = template(cluster)
    cluster.upgrade = BUSY
    cluster.upgrade_operator("runtime:2")
    finish(cluster)
    assert template(cluster) == before
