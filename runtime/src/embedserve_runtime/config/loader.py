"""Loads all settings from file, environment and flags."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
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

from embedserve_runtime.config.catalog import (
    ENVIRONMENT_PREFIX,
    NESTED_DELIMITER,
    Setting,
    SettingPath,
    list_settings,
)
from embedserve_runtime.config.engine import EngineSettings, OnnxSettings
from embedserve_runtime.config.model import ModelSettings
from embedserve_runtime.config.problems import FieldPath, describe_problems
from embedserve_runtime.config.server import BatchingSettings, ServerSettings, TelemetrySettings
from embedserve_runtime.errors import ConfigError

LogFormat = Literal["auto", "text", "json"]

OPERATOR_KEYS_FILE = "operator-keys.json"
"""The file with the operator's public keys, in the folder of the configuration file."""


class RuntimeConfig(BaseSettings):
    """All settings, which do not change after the start."""

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
        return (self.model.token, *self.server.api_keys, *self.model.url_secrets)


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
    # Imported here: only installations with such a file need the library.
    from embedserve_runtime.config.file import read_settings_file

    return read_settings_file(file)


def _describe_problems(error: ValidationError | SettingsError, flags: Mapping[str, Any]) -> str:
    if isinstance(error, SettingsError):
        return "; ".join(map(_describe_unparsed_variable, _list_unparsed_variables())) or str(error)
    return describe_problems(error, lambda path: _describe_path(path, flags))


def _list_unparsed_variables() -> Iterator[tuple[SettingPath, str]]:
    """List the variables of lists and groups that are not JSON, each with the path that it sets."""
    paths: dict[SettingPath, None] = {}
    for setting in list_runtime_settings():
        paths.update((setting.path[:end], None) for end in range(1, len(setting.path)))
        if setting.type.kind == "pairs" or (setting.type.is_list and setting.type.kind != "secret"):
            paths[setting.path] = None
    for path in paths:
        variable = _find_variable(path)
        if (
            variable is not None
            and variable.upper() == _name_variable(path)
            and not _is_json(os.environ[variable])
        ):
            yield path, variable


def _describe_unparsed_variable(unparsed: tuple[SettingPath, str]) -> str:
    path, variable = unparsed
    return (
        f"{'.'.join(path)} (set by {variable}): a variable has lists and mappings as JSON, such as "
        """'["dense", "sparse"]' or '{"query": "query: "}'"""
    )


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _describe_path(path: FieldPath, flags: Mapping[str, Any]) -> str:
    """Describe a setting by its path, and by the flag or else the environment variable that sets it, if any."""
    parts = [str(part) for part in _drop_types(path)]
    origin = _find_flag(parts, flags) or _find_variable(parts)
    return (".".join(parts) or "settings") + (f" (set by {origin})" if origin is not None else "")


def _drop_types(path: FieldPath) -> FieldPath:
    """Drop the types that pydantic names within a path, where a value may be of several."""
    for setting in list_runtime_settings():
        count = len(setting.path)
        if setting.path == tuple(path[:count]) and setting.type.kind != "pairs":
            return [*setting.path, *(part for part in path[count:] if isinstance(part, int))]
    return path


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
    """Return the variable that sets the value at `path`, or the list or group that it is in, in any case of letters."""
    variables = {name.upper(): name for name in os.environ}
    names = (_name_variable(path[:end]) for end in range(len(path), 0, -1))
    return next((variables[name] for name in names if name in variables), None)


def _name_variable(path: Sequence[str]) -> str:
    return ENVIRONMENT_PREFIX + NESTED_DELIMITER.join(path).upper()
