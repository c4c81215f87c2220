"""Lists the settings with what a command line and a page of reference need: flag, environment variable, type, default.

All of it is read from the types and descriptions of the settings, so that a new setting has its flag and its row in
docs/settings.md at once.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

ENVIRONMENT_PREFIX: Final = "EMBEDSERVE_"
NESTED_DELIMITER: Final = "__"

SettingPath = tuple[str, ...]
"""A setting by its group and its name, such as `("model", "source")`; settings without a group have only a name."""
ValueKind = Literal["boolean", "integer", "number", "path", "text", "choice", "pairs", "secret"]

_KINDS: Final[dict[type, ValueKind]] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    Path: "path",
    str: "text",
    SecretStr: "secret",
    dict: "pairs",
}
_FLAGS: Final[dict[SettingPath, str]] = {
    ("model", "source"): "--model",
    ("model", "prompts"): "--prompt",
    ("model", "default_prompt"): "--prompt-name",
    ("engine", "kind"): "--engine",
}
"""Flags that are not called as their setting is."""
_GROUPS_IN_FLAGS: Final = frozenset({"onnx"})
"""Groups whose name begins their flags: their settings are called as those of other groups are."""


@dataclass(frozen=True, slots=True)
class SettingType:
    """The type of a setting's value.

    choices: all that a `choice` may be. is_list: whether the setting has several such values. alternatives: words that
    may stand instead of the whole value, such as `auto`.
    """

    kind: ValueKind
    choices: tuple[str, ...] = ()
    is_list: bool = False
    alternatives: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    flag: None for a secret, which would stand in the list of processes. default: as a file of settings has it; empty
    where there is none.
    """

    path: SettingPath
    flag: str | None
    variable: str
    type: SettingType
    default: str
    description: str

    @property
    def group(self) -> str:
        """The name of its group; empty for a setting without one."""
        return self.path[0] if len(self.path) > 1 else ""

    @property
    def key(self) -> str:
        """The setting's path in a file of settings, with dots between the parts."""
        return ".".join(self.path)


def list_settings(model: type[BaseModel], path: SettingPath = ()) -> Iterator[Setting]:
    """List the settings of a model and of the models in its fields, in their order. path: of the model itself."""
    for name, field in model.model_fields.items():
        here = (*path, name)
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from list_settings(kind, here)
        else:
            yield _describe_setting(here, field)


def _describe_setting(path: SettingPath, field: FieldInfo) -> Setting:
    setting_type = _describe_type(field.annotation)
    return Setting(
        path,
        None if setting_type.kind == "secret" else _name_flag(path),
        ENVIRONMENT_PREFIX + NESTED_DELIMITER.join(path).upper(),
        setting_type,
        _format_default(field),
        field.description or "",
    )


def _name_flag(path: SettingPath) -> str:
    words = path if path[0] in _GROUPS_IN_FLAGS else path[-1:]
    return _FLAGS.get(path) or "--" + "-".join(words).replace("_", "-")


def _describe_type(annotation: Any) -> SettingType:
    """Describe a type of the kinds that settings have. Raises KeyError for one of another kind."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _describe_type(arguments[0])
    if origin is Literal:
        return SettingType("choice", arguments)
    if origin is tuple:
        return replace(_describe_type(arguments[0]), is_list=True)
    if origin in (Union, types.UnionType):
        members = [_describe_type(member) for member in arguments if member is not type(None)]
        main = next((member for member in members if member.kind != "choice" or member.is_list), members[0])
        choices = (choice for member in members if member is not main for choice in member.choices)
        return replace(main, alternatives=tuple(choices))
    return SettingType(_KINDS[origin or annotation])


def _format_default(field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=True, validated_data={})
    if default is None or default in ((), {}):
        return ""
    return str(default).lower() if isinstance(default, bool) else str(default)
