"""Expected files beside the tests. `make golden` writes them anew; review the difference like code."""

from __future__ import annotations

import difflib
import os
from pathlib import Path


def assert_golden(path: Path, actual: str) -> None:
    """The file's content is exactly this."""
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(actual, encoding="utf-8")
        return
    expected = path.read_text(encoding="utf-8") if path.exists() else ""
    if actual != expected:
        lines = difflib.unified_diff(
            expected.splitlines(), actual.splitlines(), f"{path.name} (expected)", "actual", lineterm=""
        )
        raise AssertionError("\n".join(["not as expected; `make golden` updates the file", *lines]))
