"""The table of cases by which a new revision takes over: every combination of facts, and what holds of all of them."""

from __future__ import annotations

import itertools
from typing import get_args

import pytest

from embedserve_operator.plan.rollout_cases import (
    ROLLOUT_CASES,
    Policy,
    Readiness,
    RolloutFacts,
    ServingState,
    SpaceChange,
    decide_rollout,
)

READY = RolloutFacts(
    policy="BlueGreen",
    serving="Alive",
    space="Different",
    desired="Verified",
    has_replicas=True,
    is_held=False,
)
ALL_FACTS = [
    RolloutFacts(*values)
    for values in itertools.product(
        get_args(Policy),
        get_args(ServingState),
        get_args(SpaceChange),
        get_args(Readiness),
        (True, False),
        (True, False),
    )
]


def test_every_case_decides_something_and_something_is_always_decided() -> None:
    deciding = {next(i for i, case in enumerate(ROLLOUT_CASES) if case.matches(facts)) for facts in ALL_FACTS}
    assert deciding == set(range(len(ROLLOUT_CASES)))


def test_the_table_has_every_combination() -> None:
    assert len(ALL_FACTS) == len(set(ALL_FACTS)) == 3 * 4 * 3 * 3 * 2 * 2


@pytest.mark.parametrize("facts", ALL_FACTS, ids=str)
def test_the_name_passes_only_as_the_user_may_expect(facts: RolloutFacts) -> None:
    state = decide_rollout(facts)
    may_refuse = facts.policy == "Refuse" and facts.serving in ("Alive", "Stopped")
    if state == "Refused":
        assert may_refuse
        assert facts.space != "Same"
    elif facts.serving == "Unused":
        assert state == "Done", "nothing was served"
    elif facts.policy == "InPlace":
        is_held = facts.is_held and facts.space != "Same"
        assert state == ("Held" if is_held else "Done"), "the user gives up what is served, unless it is held"
    elif state == "Done":
        assert facts.desired == "Verified", "no answer of a space that was not proved"
        assert facts.has_replicas, "without pods nothing is proved"
        assert facts.space == "Same" or not facts.is_held, "hold is the user's word"
        assert not (may_refuse and facts.space == "Different")
    elif state == "Held":
        assert facts.desired == "Verified", "a held space is ready at its own name"
        assert facts.is_held
        assert facts.space != "Same", "the same vectors are not held back"
    else:
        assert facts.desired != "Verified" or not facts.has_replicas, "what is proved waits for nothing"


@pytest.mark.parametrize(
    ("facts", "want"),
    [
        pytest.param(READY, "Done", id="a verified model takes over"),
        pytest.param(READY._replace(is_held=True), "Held", id="a held one does not"),
        pytest.param(READY._replace(desired="Complete"), "Checking", id="nor one that proved nothing"),
        pytest.param(READY._replace(desired="Incomplete"), "Preparing", id="nor one that is not complete"),
        pytest.param(
            READY._replace(serving="Broken", desired="Incomplete"),
            "Preparing",
            id="nor where the old one is broken",
        ),
        pytest.param(READY._replace(serving="Broken"), "Done", id="a broken old one is not an obstacle"),
        pytest.param(
            READY._replace(serving="Stopped", is_held=True), "Held", id="nor is hold skipped beside no pods"
        ),
        pytest.param(
            READY._replace(serving="Unused", desired="Incomplete"),
            "Done",
            id="one that never served is not an obstacle",
        ),
        pytest.param(READY._replace(policy="Refuse"), "Refused", id="another space is refused"),
        pytest.param(READY._replace(policy="Refuse", space="Same"), "Done", id="the same space is not"),
        pytest.param(
            READY._replace(policy="InPlace", desired="Incomplete"),
            "Done",
            id="in place nothing is waited for",
        ),
        pytest.param(
            READY._replace(policy="InPlace", space="Unknown", desired="Incomplete", is_held=True),
            "Held",
            id="unless it is held",
        ),
        pytest.param(
            READY._replace(has_replicas=False, desired="Complete"),
            "Preparing",
            id="without pods the name stays",
        ),
    ],
)
def test_what_keeps_a_new_model_from_serving(facts: RolloutFacts, want: str) -> None:
    assert decide_rollout(facts) == want
