"""The base class of all groups of settings."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class SettingsGroup(BaseModel):
    """A group of settings, frozen, without unknown keys, with finite numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
