"""Model sources that are neither a folder nor the name of a repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from embedserve_runtime.config import ModelSettings
from embedserve_runtime.errors import ModelNotFound
from embedserve_runtime.sources import open_model

SOURCES = {
    "a name longer than that of any file": "a" * 300,
    "bytes that are not UTF-8": os.fsdecode(b"\xff\xfe/x"),
}


HINTS = {
    "file:///models/minilm": "as /models/minilm",
    "hf://lab/model": "as lab/model",
    "lab/model@main": r"as lab/model and set model\.revision \(--revision main\)",
}


@pytest.mark.parametrize(("source", "hint"), HINTS.items(), ids=HINTS)
def test_a_source_as_other_programs_have_it_is_refused_with_a_hint(
    source: str, hint: str, tmp_path: Path
) -> None:
    settings = ModelSettings(source=source, store=tmp_path, endpoint="http://127.0.0.1:9")
    with pytest.raises(ModelNotFound, match=hint):
        open_model(settings)


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_what_can_be_no_name_is_not_found(source: str, tmp_path: Path) -> None:
    settings = ModelSettings(source=source, store=tmp_path, endpoint="http://127.0.0.1:9")
    with pytest.raises(ModelNotFound, match="neither a folder that exists nor"):
        open_model(settings)
