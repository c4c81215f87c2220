"""The families: `model_type` of config.json to the function that describes the encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from embedserve_runtime.errors import UnsupportedArchitecture
from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.families import bert
from embedserve_runtime.model.files import FileModel, read_json

FAMILIES: Mapping[str, Callable[[Path], Encoder]] = MappingProxyType(
    {
        "bert": bert.describe,
        "camembert": bert.describe,
        "roberta": bert.describe,
        "xlm-roberta": bert.describe,
    }
)


class _ModelType(FileModel):
    model_type: str = ""
    architectures: list[str] | None = None


def describe(folder: Path) -> Encoder:
    """The encoder in `folder`. Raises UnsupportedArchitecture with what was found and what is known."""
    path = folder / "config.json"
    config = read_json(path, _ModelType)
    family = FAMILIES.get(config.model_type)
    if family is None:
        architectures = ", ".join(config.architectures or []) or "none named"
        raise UnsupportedArchitecture(
            f"{path}: model_type {config.model_type!r} (architectures: {architectures}) is not supported; "
            f"supported: {', '.join(sorted(FAMILIES))}"
        )
    return family(folder)
