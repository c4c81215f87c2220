"""Slots of an upgrade: no more services at a time than allowed, whatever several workers decide meanwhile."""

from __future__ import annotations

from embedserve_operator.kube.references import ObjectKey
from embedserve_operator.queue.upgrade_slots import UpgradeSlots
from embedserve_operator.state.upgrades import UpgradePhase, UpgradeProgress

A, B, C, D = (ObjectKey("search", name) for name in "abcd")
ROLLING: dict[ObjectKey, UpgradePhase] = {A: "Rolling"}
FAILED: dict[ObjectKey, UpgradePhase] = {A: "Failed"}


def test_a_service_that_is_being_written_counts_before_its_deployment_says_so() -> None:
    slots = UpgradeSlots(2)
    slots.acquire(B)
    assert slots.count_others(C, ROLLING) == UpgradeProgress(rolling=2)
    slots.release(B)
    assert slots.count_others(C, ROLLING) == UpgradeProgress(rolling=1)
    assert slots.count_others(C, {A: "Rolling", B: "Rolling"}) == UpgradeProgress(rolling=2)


def test_a_service_does_not_count_itself() -> None:
    slots = UpgradeSlots(2)
    slots.acquire(A)
    assert slots.count_others(A, ROLLING) == UpgradeProgress()
    assert slots.count_others(A, FAILED) == UpgradeProgress()
    assert slots.count_others(B, FAILED) == UpgradeProgress(failed=1)


def test_as_many_are_looked_at_again_as_there_are_free_turns_in_their_order() -> None:
    slots = UpgradeSlots(2)
    for key in (D, B, C):
        slots.enqueue(key)
    assert slots.take_due(ROLLING) == [D]
    assert slots.count_waiting() == 2
    slots.acquire(D)
    assert slots.take_due(ROLLING) == []
    slots.release(D)
    assert slots.take_due({}) == [B, C]
    assert slots.take_due({}) == []


def test_all_are_looked_at_once_when_one_fails_and_none_begins_before_it_is_mended() -> None:
    slots = UpgradeSlots(1)
    for key in (B, C):
        slots.enqueue(key)
    assert slots.take_due(FAILED) == [B, C], "to say that the upgrade has stopped"
    for key in (B, C):
        slots.enqueue(key)
    assert slots.take_due(FAILED) == []
    assert slots.take_due({}) == [B]


def test_who_has_left_is_not_looked_at() -> None:
    slots = UpgradeSlots(1)
    slots.enqueue(B)
    slots.dequeue(B)
    assert slots.take_due({}) == []
