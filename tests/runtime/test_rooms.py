"""The subpackages: few files beside them, one job each, told in one sentence in the code and on the page."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import embedserve_operator
import embedserve_runtime

RUNTIME = Path(embedserve_runtime.__file__).parent
OPERATOR = Path(embedserve_operator.__file__).parent
PAGE = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGES = sorted(path.parent for path in RUNTIME.glob("*/__init__.py"))


def test_only_what_every_package_may_know_stands_at_the_top() -> None:
    """Sockets to listen on are opened by the servers and by what fetches a model, which do not know each other; how far
    long work is, is told by fetches, engines and conversions alike."""
    names = {"__init__.py", "errors.py", "listening.py", "progress.py"}
    assert {path.name for path in RUNTIME.glob("*.py")} == names


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_a_package_has_one_job_and_the_page_says_the_same(package: Path) -> None:
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""
    job = docstring.partition("\n")[0].removesuffix(".")
    assert job
    assert " and " not in job
    assert f"| `{package.name}/` | {job}" in PAGE


def test_the_diagrams_of_a_request_and_of_an_event_name_modules_that_exist() -> None:
    diagrams = re.findall(r"```mermaid\n(.*?)```", PAGE, re.DOTALL)
    for package, diagram in zip((RUNTIME, OPERATOR), diagrams, strict=True):
        nodes = re.findall(r"\[\(?([a-z_]+/[^\])]+)", diagram)
        modules = [module for node in nodes for module in node.split(", ")]
        assert len(modules) > 5
        assert [module for module in modules if not any(package.glob(f"{module}.py"))] == []


def test_where_to_change_what_names_files_that_exist() -> None:
    section = PAGE.partition("## Where would I change X?")[2].partition("\n## ")[0]
    rows = [line.split("|")[2:4] for line in section.splitlines() if line.startswith("|")][2:]
    assert len(rows) >= 10
    for row in rows:
        named = [
            (package, re.findall(r"`([^`]+)`", cell))
            for package, cell in zip((RUNTIME, OPERATOR), row, strict=True)
        ]
        assert any(paths for _, paths in named)
        assert [path for package, paths in named for path in paths if not (package / path).exists()] == []
