"""Reads a file of settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from embedserve_runtime.config.problems import describe_yaml_position
from embedserve_runtime.errors import ConfigError


class _UniqueKeyLoader(yaml.SafeLoader):
    """A loader that refuses a key that a mapping has twice, of which the others would be dropped without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and (key.tag, key.value) in keys:
                raise yaml.constructor.ConstructorError(
                    None, None, "the same key a second time", key.start_mark
                )
            keys.add((key.tag, str(key.value)))
        return super().construct_mapping(node, deep)


def read_settings_file(file: Path) -> dict[str, Any]:
    """Read a file with settings in YAML; an empty one has none. Raises ConfigError, which does not quote it."""
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), _UniqueKeyLoader)
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {file}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{file} is not valid YAML: {_describe_error(error)}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{file} must hold a mapping of settings, found a {type(content).__name__}")
    return content


def _describe_error(error: yaml.YAMLError | UnicodeDecodeError | RecursionError) -> str:
    match error:
        case yaml.MarkedYAMLError():
            return f"{error.problem}{describe_yaml_position(error)}"
        case RecursionError():
            return "it is nested too deeply"
        case UnicodeDecodeError():
            return f"byte {error.start} is not UTF-8 text"
        case yaml.reader.ReaderError():
            return f"character {error.position} is a control character"
        case _:
            return "it cannot be parsed"
