"""English that is at hand everywhere: the paragraphs of the standard library's docstrings."""

from __future__ import annotations

import ast
import random
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

FEWEST_WORDS = 4
LEFT_OUT = {"site-packages", "test", "tests", "idlelib"}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def paragraphs() -> list[str]:
    """Different ones of at least four words, in one line each, in the same order at every call."""
    root = Path(sysconfig.get_path("stdlib"))
    files = (file for file in sorted(root.rglob("*.py")) if LEFT_OUT.isdisjoint(file.relative_to(root).parts))
    found = list(dict.fromkeys(paragraph for file in files for paragraph in _of_file(file)))
    random.Random(1).shuffle(found)
    return found


def _of_file(file: Path) -> Iterator[str]:
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):  # templates, such as those of lib2to3
        return
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED):
            for paragraph in re.split(r"\n\s*\n", ast.get_docstring(node) or ""):
                if len(words := paragraph.split()) >= FEWEST_WORDS:
                    yield " ".join(words)
