"""Decides, by a table of cases, when the pods of a service pass to what another release of the operator, or
another setting of it, makes of the manifest.

The number of services that roll at the same time is limited, and none begins while one has failed. What a user edits
is done at once, and so is what restarts no pod that answers.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from embedserve_operator.plan.case_table import are_accepted, one_of
from embedserve_operator.state.upgrades import UpgradePhase

UpgradeStep = Literal["Unaffected", "Begin", "Roll", "Fail", "Finish", "Wait", "Stop"]
"""Unaffected: the Deployment is written as it should be, and takes no slot. Begin: it takes a slot now. Roll: it has
one. Fail: its new pods do not become ready. Finish: they are. Wait: others hold all slots. Stop: another one has
failed. With the last two the Deployment stays as it is.
"""

TemplateChange = Literal["None", "Edited", "Upgraded"]
"""Says why the pod template should change. Edited: because of the user's manifest, or of what a Job has found out.
Upgraded: because of the operator.
"""

PodsState = Literal["Ready", "Starting", "Failing"]
"""State of the pods of the Deployment as it is. Ready: all that it asks for are of its template and ready. Starting:
some are not yet. Failing: some do not become ready before somebody changes something.
"""

SlotState = Literal["Free", "Taken", "Stopped"]
"""Free: fewer services than allowed roll. Taken: as many as allowed do. Stopped: one has failed."""


def is_deferred(step: UpgradeStep) -> bool:
    """Return whether the Deployment stays as it is for now, since other services hold all slots or one has failed."""
    return step in ("Wait", "Stop")


class UpgradeFacts(NamedTuple):
    """The facts that decide about an upgrade of one Deployment."""

    phase: UpgradePhase
    """The phase that is annotated on the Deployment."""
    template: TemplateChange
    pods: PodsState
    has_ready_pods: bool
    slot: SlotState


class _UpgradeCase(NamedTuple):
    """A row of the table from facts to a step; None stands for any value."""

    step: UpgradeStep
    phase: frozenset[str] | None = None
    template: frozenset[str] | None = None
    pods: frozenset[str] | None = None
    has_ready_pods: frozenset[bool] | None = None
    slot: frozenset[str] | None = None

    def matches(self, facts: UpgradeFacts) -> bool:
        """Return whether the case is about these facts."""
        return are_accepted(facts, self[1:])


_HAS_SLOT = one_of("Rolling", "Failed")
_NO = frozenset({False})

UPGRADE_CASES = (
    # Who has a slot keeps it, and may be mended by the user or by another release.
    _UpgradeCase("Roll", phase=_HAS_SLOT, template=one_of("Edited", "Upgraded")),
    _UpgradeCase("Finish", phase=_HAS_SLOT, pods=one_of("Ready")),
    _UpgradeCase("Fail", phase=_HAS_SLOT, pods=one_of("Failing")),
    # A pod that crashes again and again is starting in between.
    _UpgradeCase("Fail", phase=one_of("Failed")),
    _UpgradeCase("Roll", phase=one_of("Rolling")),
    _UpgradeCase("Unaffected", template=one_of("None", "Edited")),
    _UpgradeCase("Unaffected", has_ready_pods=_NO),
    _UpgradeCase("Stop", slot=one_of("Stopped")),
    _UpgradeCase("Wait", slot=one_of("Taken")),
    _UpgradeCase("Begin"),
)
"""The first case that matches decides."""


def decide_upgrade(facts: UpgradeFacts) -> UpgradeStep:
    """Return what an upgrade does with a Deployment now."""
    return next(case.step for case in UPGRADE_CASES if case.matches(facts))
