"""Describes how far an upgrade of the operator has come with the pods of services."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

UpgradePhase = Literal["", "Rolling", "Failed"]
"""Rolling: the pods of a service are being replaced by those of another release or setting of the operator. Failed:
these do not become ready. Empty otherwise.
"""


@dataclass(frozen=True, slots=True)
class UpgradeProgress:
    """The numbers of other services whose pods an upgrade replaces."""

    rolling: int = 0
    failed: int = 0


NO_UPGRADE = UpgradeProgress()
"""The progress where no other service is upgraded."""
