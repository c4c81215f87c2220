"""Reports how far an upgrade of the operator has come with a service."""

from __future__ import annotations

from embedserve_operator.plan.upgrade_cases import UpgradeStep
from embedserve_operator.status.condition_values import ConditionValue


def build_upgrade_conditions(step: UpgradeStep) -> tuple[ConditionValue, ...]:
    """Return the condition that an upgrade of the operator is not over for the service; none where it is."""
    reason_and_message = _CONDITIONS.get(step)
    if reason_and_message is None:
        return ()
    return (ConditionValue("Upgrading", "True", *reason_and_message),)


ROLLING_OUT = "RollingOut"
WAITING_FOR_TURN = "WaitingForTurn"
_ROLLING = (ROLLING_OUT, "the operator was upgraded or its settings changed, and the pods are being replaced")
_CONDITIONS: dict[UpgradeStep, tuple[str, str]] = {
    "Begin": _ROLLING,
    "Roll": _ROLLING,
    "Fail": (
        "UpgradeFailed",
        "the operator was upgraded or its settings changed, and the new pods do not become ready; no other service is "
        "upgraded before these are ready, the manifest is changed, or the operator's release or setting is",
    ),
    "Wait": (
        WAITING_FOR_TURN,
        "the operator was upgraded or its settings changed; the pods are replaced when it is this service's turn (the "
        "chart's upgrade.maxConcurrent), or at once when the manifest changes",
    ),
    "Stop": (
        "UpgradeStopped",
        "the operator was upgraded or its settings changed, and the new pods of another service do not become ready: "
        "the pods of this one stay as they are",
    ),
}
"""Reason and message of the condition after each step that has one."""
