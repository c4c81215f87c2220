"""Loads all settings from file, environment and flags."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from embedserve_runtime.config.catalog import ENVIRONMENT_PREFIX, NESTED_DELIMITER, Setting, list_settings
from embedserve_runtime.config.engine import EngineSettings, OnnxSettings
from embedserve_runtime.config.model import ModelSettings
from embedserve_runtime.config.problems import FieldPath, describe_problems, describe_yaml_position
from embedserve_runtime.config.server import BatchingSettings, ServerSettings, TelemetrySettings
from embedserve_runtime.errors import ConfigError

LogFormat = Literal["auto", "text", "json"]

OPERATOR_KEYS_FILE = "operator-keys.json"
"""The file with the operator's public keys, in the folder of the configuration file."""


class RuntimeConfig(BaseSettings):
    """Holds all settings, which do not change after the start."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        # `load_config` builds the validator for a class of its own.
        defer_build=True,
        env_prefix=ENVIRONMENT_PREFIX,
        env_nested_delimiter=NESTED_DELIMITER,
        nested_model_default_partial_update=True,
    )

    model: ModelSettings
    server: ServerSettings = ServerSettings()
    batching: BatchingSettings = BatchingSettings()
    engine: EngineSettings = EngineSettings()
    onnx: OnnxSettings = OnnxSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least level logged."
    )
    log_format: LogFormat = Field(
        default="auto",
        description="How log lines are written. `text`: readable lines, coloured on a terminal. `json`: an object a "
        "line. `auto`: text on a terminal, json elsewhere.",
    )
    termination_log: Path = Field(
        default=Path("/dev/termination-log"),
        description="File that gets the reason as JSON when the start fails; written only if it exists.",
    )

    @property
    def secrets(self) -> tuple[SecretStr | None, ...]:
        """The settings that are secrets."""
        return (self.model.token, *self.server.api_keys)


@cache
def list_runtime_settings() -> Sequence[Setting]:
    """Return all settings, in the order of their groups."""
    return tuple(list_settings(RuntimeConfig))


def load_config(file: Path | None = None, flags: Mapping[str, Any] | None = None) -> RuntimeConfig:
    """Read the configuration; `flags` is a nested mapping that wins over environment and file.

    Raises ConfigError with every problem, its field path, and the flag or the variable that the value comes from.
    """
    flags = flags or {}

    class Loader(RuntimeConfig):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, init_kwargs=content)

    # The group is there in any case: its own validator says that no model is named, and how to name one.
    content = {"model": {}} | (_read_file(file) if file else {})
    try:
        loaded = Loader(**flags)
    except (ValidationError, SettingsError) as error:
        raise ConfigError(
            f"configuration{f' {file}' if file else ''}: {_describe_problems(error, flags)}"
        ) from error
    values = {name: getattr(loaded, name) for name in RuntimeConfig.model_fields}
    if file is not None and loaded.server.operator_keys_file is None:
        values["server"] = loaded.server.model_copy(
            update={"operator_keys_file": file.parent / OPERATOR_KEYS_FILE}
        )
    return RuntimeConfig.model_construct(**values)


def _read_file(file: Path) -> dict[str, Any]:
    # Imported here: only installations with such a file need it.
    import yaml

    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {file}: {error.strerror}") from error
    except yaml.MarkedYAMLError as error:
        raise ConfigError(
            f"{file} is not valid YAML: {error.problem}{describe_yaml_position(error)}"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid YAML: {type(error).__name__}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{file} must hold a mapping of settings, found a {type(content).__name__}")
    return content


def _describe_problems(error: ValidationError | SettingsError, flags: Mapping[str, Any]) -> str:
    if isinstance(error, SettingsError):
        return str(error)
    return describe_problems(error, lambda path: _describe_path(path, flags))


def _describe_path(path: FieldPath, flags: Mapping[str, Any]) -> str:
    """Describe a setting by its path, and by the flag or else the environment variable that sets it, if any."""
    parts = [str(part) for part in path]
    origin = _find_flag(parts, flags) or _find_variable(parts)
    return (".".join(parts) or "settings") + (f" (set by {origin})" if origin is not None else "")


def _find_flag(path: Sequence[str], flags: Mapping[str, Any]) -> str | None:
    """Return the flag that sets the value at `path`, or the list or mapping that it is in."""
    for setting in list_runtime_settings():
        if setting.path == tuple(path[: len(setting.path)]):
            value: Any = flags
            for name in setting.path:
                value = value.get(name) if isinstance(value, Mapping) else None
            return None if value is None else setting.flag
    return None


def _find_variable(path: Sequence[str]) -> str | None:
    variables = (
        ENVIRONMENT_PREFIX + NESTED_DELIMITER.join(path[:end]).upper() for end in range(len(path), 0, -1)
    )
    return next((name for name in variables if name in os.environ), None)
