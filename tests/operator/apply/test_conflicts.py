"""Fields that another manager owns: drift is put right, a fight is not begun."""

from __future__ import annotations

import pytest

from embedserve_operator.apply.conflicts import (
    ConflictHistory,
    concerns_only_replicas,
    find_applying_managers,
)
from embedserve_operator.kube.client import FIELD_MANAGER, SCALE_MANAGER

OURS = frozenset({FIELD_MANAGER, SCALE_MANAGER})


@pytest.mark.parametrize(
    ("message", "want"),
    [
        pytest.param(
            'Apply failed with 1 conflict: conflict with "kubectl" with subresource "scale" using apps/v1: '
            ".spec.replicas",
            (),
            id="somebody scaled",
        ),
        pytest.param(
            'Apply failed with 1 conflict: conflict with "kubectl-edit" using v1 at 2026-01-02T12:00:00Z: '
            ".spec.type",
            (),
            id="somebody edited",
        ),
        pytest.param(
            'Apply failed with 1 conflict: conflict with "argocd-controller": .spec.replicas',
            ("argocd-controller",),
            id="a GitOps tool applied",
        ),
        pytest.param(
            'Apply failed with 2 conflicts: conflicts with "flux":\n- .spec.type\n- .spec.ports\n'
            'conflicts with "kubectl-edit" using v1:\n- .spec.selector',
            ("flux",),
            id="one of two insists",
        ),
        pytest.param(
            f'Apply failed with 1 conflict: conflict with "{SCALE_MANAGER}": .spec.replicas',
            (),
            id="ourselves under the other name",
        ),
    ],
)
def test_managers_that_applied_are_told_from_those_that_updated(message: str, want: tuple[str, ...]) -> None:
    assert find_applying_managers(message, OURS) == want


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ('Apply failed with 1 conflict: conflict with "hpa" using apps/v1: .spec.replicas', True),
        ('Apply failed with 1 conflict: conflict with "argocd-controller": .spec.replicas', True),
        (
            'Apply failed with 2 conflicts: conflicts with "a" using apps/v1:\n- .spec.replicas\n'
            'conflicts with "b":\n- .spec.replicas',
            True,
        ),
        ('Apply failed with 2 conflicts: conflicts with "a":\n- .spec.replicas\n- .spec.paused', False),
        ('Apply failed with 1 conflict: conflict with "a" using apps/v1: .spec.paused', False),
        ("the object has been modified", False),
    ],
)
def test_a_conflict_about_the_number_of_pods_alone_is_told(message: str, expected: bool) -> None:
    assert concerns_only_replicas(message) is expected


def test_what_is_changed_again_and_again_is_not_taken_back_for_ever() -> None:
    conflict_history = ConflictHistory()
    assert [conflict_history.may_overrule("x", now) for now in (0.0, 10.0, 20.0, 30.0)] == [
        True,
        True,
        True,
        False,
    ]
    assert conflict_history.may_overrule("y", 30.0), "another object is another matter"
    assert conflict_history.may_overrule("x", 700.0), "after a quiet while it is drift again"


def test_memory_is_bounded() -> None:
    conflict_history = ConflictHistory()
    for number in range(10_000):
        conflict_history.may_overrule(number, 0.0)
    assert len(vars(conflict_history)["_times"]) == 4096
