"""Reads what README.md says of the model: the Hub's metadata, and the first title."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from embedserve_runtime.model.files import ModelFiles

README_FILE = "README.md"
# Where metadata may end; a README is a text of kilobytes.
MAX_METADATA_CHARACTERS = 100_000
_METADATA = re.compile(r"\s*---\s*\n(.*?\n)---\s*\n", re.DOTALL)
_TITLE = re.compile(r"^#\s+(.+?)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Readme:
    """The metadata and the title of README.md.

    pipeline: the Hub's name of the task (`pipeline_tag`). bases: models that this one was made from. title: the first
    heading. Empty where the file does not say it.
    """

    pipeline: str = ""
    bases: tuple[str, ...] = ()
    title: str = ""


def read_readme(files: ModelFiles) -> Readme:
    """Read the metadata; what cannot be read is as if it were not there, since no program needs this file."""
    file = files.find(README_FILE)
    if file is None or file.fault is not None:
        return Readme()
    text = file.content.decode(errors="replace")[:MAX_METADATA_CHARACTERS]
    header, title = _METADATA.match(text), _TITLE.search(_METADATA.sub("", text, count=1))
    try:
        content = yaml.safe_load(header[1]) if header else None
    except yaml.YAMLError:
        content = None
    metadata = content if isinstance(content, dict) else {}
    return Readme(
        pipeline=next(iter(_list_texts(metadata.get("pipeline_tag"))), ""),
        bases=tuple(_list_texts(metadata.get("base_model"))),
        title="" if title is None else title[1],
    )


def _list_texts(value: object) -> Sequence[str]:
    values = value if isinstance(value, list) else [value]
    return [value for value in values if isinstance(value, str)]
