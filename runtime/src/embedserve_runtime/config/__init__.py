"""Reads every setting into one model.

That model is the contract with the operator. Later sources win: defaults, the YAML file (`--config`), environment
(`EMBEDSERVE_BATCHING__MAX_BATCH_TOKENS`), command-line flags. Unknown keys stop the start. No other package reads
environment variables.

    base     the base class of all groups of settings
    model    which model is served, and where it comes from
    server   server, batching, telemetry
    engine   engine, conversion
    secrets  how secrets are validated
    network  checks the environment variables of HTTP clients
    catalog  lists all settings with their flags and variables
    file     reads a file of settings
    problems describes what is wrong with a file or a setting
    loader   reads all groups from their sources
"""

from __future__ import annotations

from embedserve_runtime.config.catalog import Setting
from embedserve_runtime.config.engine import EngineSettings, OnnxSettings, ParitySettings
from embedserve_runtime.config.loader import LogFormat, RuntimeConfig, list_runtime_settings, load_config
from embedserve_runtime.config.model import ModelSettings, StoreLocation
from embedserve_runtime.config.server import BatchingSettings, ServerSettings, TelemetrySettings

__all__ = [
    "BatchingSettings",
    "EngineSettings",
    "LogFormat",
    "ModelSettings",
    "OnnxSettings",
    "ParitySettings",
    "RuntimeConfig",
    "ServerSettings",
    "Setting",
    "StoreLocation",
    "TelemetrySettings",
    "list_runtime_settings",
    "load_config",
]
