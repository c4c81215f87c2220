"""Decides, by a table of cases, whether the service's Service switches to the revision that the manifest
asks for.

Neither the check of the vectors nor `hold` is skipped because one side has no pods: without pods nothing is verified,
and the Service keeps selecting the serving revision.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from embedserve_operator.plan.case_table import are_accepted, one_of

RolloutState = Literal["Done", "Preparing", "Checking", "Held", "Refused"]
"""Done: the Service selects the desired revision, or switches to it now. The others say what the switch waits for."""

Policy = Literal["BlueGreen", "Refuse", "InPlace"]

ServingState = Literal["Alive", "Stopped", "Broken", "Unused"]
"""State of the serving revision, which the Service selects now.

Alive: it serves, or may recover. Stopped: it is scaled to zero, and its vectors have been served. Broken: its vectors
have been served, and it does not recover by itself. Unused: it has never made vectors, and will not.
"""

SpaceChange = Literal["Same", "Different", "Unknown"]
"""Compares the vector space of the desired revision with the one that is served now; Unknown while one of the two is
not known.
"""

Readiness = Literal["Incomplete", "Complete", "Verified"]
"""Progress of the desired revision.

Complete: all its pods are ready. Verified: all of them have passed the check of their vectors, and the Service of their
vector space exists.
"""


class RolloutFacts(NamedTuple):
    """The facts that decide whether the desired revision takes over from another one."""

    policy: Policy
    """The value of `spec.rollout.onNewVectorSpace`; InPlace too where only one pod can mount the volume of models."""
    serving: ServingState
    space: SpaceChange
    desired: Readiness
    has_replicas: bool
    """Indicates that the manifest asks for any pods."""
    is_held: bool
    """The value of `spec.rollout.hold`: another vector space waits until the user releases it."""


class _RolloutCase(NamedTuple):
    """A row of the table from facts to a state; None stands for any value."""

    state: RolloutState
    policy: frozenset[str] | None = None
    serving: frozenset[str] | None = None
    space: frozenset[str] | None = None
    desired: frozenset[str] | None = None
    has_replicas: frozenset[bool] | None = None
    is_held: frozenset[bool] | None = None

    def matches(self, facts: RolloutFacts) -> bool:
        """Return whether the case is about these facts."""
        return are_accepted(facts, self[1:])


_GUARDED = frozenset({"Alive", "Stopped"})
_YES, _NO = frozenset({True}), frozenset({False})


ROLLOUT_CASES = (
    _RolloutCase("Refused", policy=one_of("Refuse"), serving=_GUARDED, space=one_of("Different")),
    # Without pods of the new model, its vector space cannot be known.
    _RolloutCase(
        "Refused", policy=one_of("Refuse"), serving=_GUARDED, space=one_of("Unknown"), has_replicas=_NO
    ),
    # No client can have stored its vectors, and there is nothing to roll back to.
    _RolloutCase("Done", serving=one_of("Unused")),
    # Nothing can be ready beside the old pods, so nothing of the new model is begun.
    _RolloutCase("Held", policy=one_of("InPlace"), space=one_of("Different", "Unknown"), is_held=_YES),
    # The user asked for it: no answers until the new pods are ready.
    _RolloutCase("Done", policy=one_of("InPlace")),
    _RolloutCase("Preparing", has_replicas=_NO),
    _RolloutCase("Preparing", desired=one_of("Incomplete")),
    _RolloutCase("Checking", desired=one_of("Complete")),
    _RolloutCase("Held", space=one_of("Different", "Unknown"), is_held=_YES),
    _RolloutCase("Done"),
)
"""The first case that matches decides."""


def decide_rollout(facts: RolloutFacts) -> RolloutState:
    """Return whether the desired revision takes over, or what it waits for."""
    return next(case.state for case in ROLLOUT_CASES if case.matches(facts))
