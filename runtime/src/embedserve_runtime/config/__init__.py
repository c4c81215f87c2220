"""Every setting of the runtime, in one model: the contract with the operator.

Sources, later wins: defaults, the YAML file (`--config`), environment (`EMBEDSERVE_BATCHING__MAX_BATCH_TOKENS`),
command-line flags. Unknown keys stop the start. No other room reads environment variables.

    group      what all groups of settings are
    model      which model, and from where
    serving    server, batching, telemetry
    computing  engine, conversion
    reading    all of them, out of their sources
"""

from __future__ import annotations

from embedserve_runtime.config.computing import EngineSettings, OnnxSettings, ParitySettings
from embedserve_runtime.config.model import ModelSettings
from embedserve_runtime.config.reading import RuntimeConfig, load_config
from embedserve_runtime.config.serving import BatchingSettings, ServerSettings, TelemetrySettings

__all__ = [
    "BatchingSettings",
    "EngineSettings",
    "ModelSettings",
    "OnnxSettings",
    "ParitySettings",
    "RuntimeConfig",
    "ServerSettings",
    "TelemetrySettings",
    "load_config",
]
