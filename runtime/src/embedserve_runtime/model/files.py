"""Reading the small JSON files of a model folder, with errors that name the file and the field."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from embedserve_runtime.errors import ModelFileMissing, ModelInvalid

T = TypeVar("T")


class FileModel(BaseModel):
    """Base of the models of foreign JSON files: keys that we do not read are ignored. A validator is made when a
    first file of its kind is read: a model folder has few of them."""

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)


@cache
def _validator_of(shape: Any) -> TypeAdapter[Any]:
    """Cache one validator for each type, of which the code has few."""
    return TypeAdapter(shape)


def read_json(path: Path, shape: type[T]) -> T:
    """Parse `path` as `shape`. Raises ModelFileMissing or ModelInvalid, naming the file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise ModelFileMissing(f"{path.name} not found in {path.parent}") from error
    except OSError as error:
        raise ModelInvalid(f"{path} cannot be read: {error.strerror}") from error
    try:
        read: T = _validator_of(shape).validate_python(json.loads(content))  # type: ignore[arg-type]  # T has a hash
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelInvalid(f"{path} is not valid JSON: {error}") from error
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in problem['loc']) or 'content'}: {problem['msg']}"
            for problem in error.errors(include_url=False, include_input=False)
        )
        raise ModelInvalid(f"{path}: {problems}") from error
    return read


def read_json_if_there(path: Path, shape: type[T], otherwise: T) -> T:
    """Read a JSON file; return `otherwise` when it does not exist."""
    return read_json(path, shape) if path.exists() else otherwise
