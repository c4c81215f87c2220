"""A docstring of the runtime is a sentence that stands alone, and never the rest of one that begins with a name.

Those of the API's schemas are descriptions in the OpenAPI document.
"""

from __future__ import annotations

from pathlib import Path

import embedserve_runtime
from tests.support.docstrings import find_fragments

PACKAGE = Path(embedserve_runtime.__file__).parent


def test_docstrings_are_sentences() -> None:
    paths = {path.relative_to(PACKAGE): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    assert len(paths) > 300
    fragments = {path.as_posix(): find_fragments(source) for path, source in paths.items()}
    assert {path: docstrings for path, docstrings in fragments.items() if docstrings} == {}
