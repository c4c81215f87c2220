"""The subpackages: few files beside them, one job each, told in one sentence in the code and on both pages."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import embedserve_operator

OPERATOR = Path(embedserve_operator.__file__).parent
DOCS = Path(__file__).parents[2] / "docs"
PACKAGES = sorted(path.parent for path in OPERATOR.glob("*/__init__.py"))


def test_only_what_many_packages_know_stands_at_the_top() -> None:
    """The clock is for what acts; the import contracts keep it from what decides."""
    assert {path.name for path in OPERATOR.glob("*.py")} == {
        "__init__.py",
        "clock.py",
        "errors.py",
        "settings.py",
    }


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_a_package_has_one_job_and_the_pages_say_the_same(package: Path) -> None:
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""
    job = docstring.partition("\n")[0].removesuffix(".")
    assert job
    assert " and " not in job
    for page in ("architecture.md", "engineering/operator.md"):
        assert f"| `{package.name}/` | {job}" in (DOCS / page).read_text(encoding="utf-8")
