"""What all groups of settings are: frozen, and closed to unknown keys."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class SettingsGroup(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
