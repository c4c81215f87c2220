"""The table of cases by which a new revision takes over: no case is hidden behind those before it."""

from __future__ import annotations

import itertools

import pytest

from embedserve_operator.plan.rollout import _ROLLOUT_CASES, _RolloutFacts

READY = _RolloutFacts(
    policy="BlueGreen",
    is_name_guarded=False,
    is_other_space=True,
    is_old_alive=True,
    is_new_complete=True,
    has_replicas=True,
    is_new_verified=True,
    is_held=False,
)


def decide(facts: _RolloutFacts) -> int:
    """Return the index of the case that decides."""
    return next(index for index, case in enumerate(_ROLLOUT_CASES) if case.matches(facts))


def all_facts() -> list[_RolloutFacts]:
    flags = itertools.product((True, False), repeat=len(READY) - 1)
    return [
        _RolloutFacts(policy, *values) for values in flags for policy in ("BlueGreen", "Refuse", "InPlace")
    ]


def test_every_case_decides_something_and_something_is_always_decided() -> None:
    assert {decide(facts) for facts in all_facts()} == set(range(len(_ROLLOUT_CASES)))


@pytest.mark.parametrize(
    ("facts", "want"),
    [
        pytest.param(READY, "Done", id="a verified model takes over"),
        pytest.param(READY._replace(is_held=True), "Held", id="a held one does not"),
        pytest.param(READY._replace(is_new_verified=False), "Checking", id="nor one that proved nothing"),
        pytest.param(READY._replace(is_new_complete=False), "Preparing", id="nor one that is not complete"),
        pytest.param(
            READY._replace(is_old_alive=False, is_new_complete=False),
            "Done",
            id="a broken old one is no obstacle",
        ),
        pytest.param(
            READY._replace(policy="Refuse", is_name_guarded=True), "Refused", id="another space is refused"
        ),
        pytest.param(
            READY._replace(policy="Refuse", is_name_guarded=True, is_other_space=False),
            "Done",
            id="the same space is not",
        ),
        pytest.param(
            READY._replace(policy="InPlace", is_new_complete=False),
            "Done",
            id="in place nothing is waited for",
        ),
        pytest.param(
            READY._replace(has_replicas=False, is_new_verified=False),
            "Done",
            id="without pods nothing is verified",
        ),
    ],
)
def test_what_keeps_a_new_model_from_serving(facts: _RolloutFacts, want: str) -> None:
    assert _ROLLOUT_CASES[decide(facts)].state == want
