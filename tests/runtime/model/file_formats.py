"""The files of a model that are changed field by field: their content as JSON has it, and back."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

_README = re.compile(r"(?:---\n(?P<metadata>.*?)---\n)?\s*(?:# (?P<title>[^\n]*)\n)?", re.DOTALL)


@dataclass(frozen=True)
class FileFormat:
    """parse: from text to an object of fields. dump: from the object to text. absent: values of fields that the file
    may have and that have no shape of their own in the code."""

    parse: Callable[[str], Any] = json.loads
    dump: Callable[[Any], str] = json.dumps
    absent: Mapping[str, tuple[object, ...]] = field(default_factory=dict)


def _parse_readme(text: str) -> dict[str, Any]:
    match = _README.match(text)
    assert match is not None
    metadata = yaml.safe_load(match["metadata"] or "") or {}
    return {**metadata, **({} if match["title"] is None else {"title": match["title"]})}


def _dump_readme(content: Mapping[str, Any]) -> str:
    metadata = yaml.safe_dump({key: value for key, value in content.items() if key != "title"})
    title = f"# {content['title']}\n" if "title" in content else ""
    return f"---\n{metadata}---\n\n{title}"


README = FileFormat(
    _parse_readme,
    _dump_readme,
    {
        "pipeline_tag": ("text-ranking", "sentence-similarity"),
        "base_model": ("Qwen/Qwen3-Reranker-0.6B", "zeroentropy/zerank-2", ["acme/base"]),
        "title": ("zeroentropy/zerank-2",),
    },
)
TEXT = FileFormat(lambda text: {"text": text}, lambda content: str(content.get("text", "")))
JSON = FileFormat()
# By the name of the file; the others are JSON.
FORMATS: Mapping[str, FileFormat] = {"README.md": README, "chat_template.jinja": TEXT}


def format_of(path: Path) -> FileFormat:
    """The format of a file, by its name."""
    return FORMATS.get(path.name, JSON)
