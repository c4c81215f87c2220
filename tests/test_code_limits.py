"""Functions take few parameters and are short, files are short; what is not stands in one table with its reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import pytest

import embedserve_operator
import embedserve_runtime

PACKAGES = (Path(embedserve_operator.__file__).parent, Path(embedserve_runtime.__file__).parent)
Measure = Literal["parameters", "lines of a function", "lines of a file"]
LIMITS: dict[Measure, int] = {"parameters": 5, "lines of a function": 50, "lines of a file": 400}


class Excess(NamedTuple):
    """What is above a limit. path: from the folder that has the package in it. name: of the function, else empty."""

    path: str
    name: str
    measure: Measure
    size: int


class Allowed(NamedTuple):
    """What may be above a limit. pattern: of paths, as `Path.match` takes it."""

    pattern: str
    measure: Measure
    reason: str


ALLOWED = (
    Allowed(
        "embedserve_runtime/engines/torch/fused/kernels/*.py",
        "parameters",
        "the parameters of a kernel are what a launch passes: pointers, numbers and constants, no objects",
    ),
    Allowed(
        "embedserve_runtime/engines/torch/fused/kernels/*.py",
        "lines of a function",
        "a kernel is one function, whose values stay in registers",
    ),
)


def find_excesses(path: str, source: str) -> Iterator[Excess]:
    yield from _above(path, "", "lines of a file", len(source.splitlines()))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield from _above(path, node.name, "parameters", _count_parameters(node.args))
            yield from _above(path, node.name, "lines of a function", node.end_lineno - node.lineno + 1)


def _above(path: str, name: str, measure: Measure, size: int) -> Iterator[Excess]:
    if size > LIMITS[measure]:
        yield Excess(path, name, measure, size)


def _count_parameters(arguments: ast.arguments) -> int:
    """Of positions and by keyword alone; the object or class of a method is not counted."""
    names = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
    return len(names) + len(arguments.kwonlyargs) - (names[:1] in (["self"], ["cls"]))


@pytest.fixture(scope="module")
def excesses() -> list[Excess]:
    files = [(package, path) for package in PACKAGES for path in sorted(package.rglob("*.py"))]
    assert len(files) > 400
    return [
        excess
        for package, path in files
        for excess in find_excesses(
            path.relative_to(package.parent).as_posix(), path.read_text(encoding="utf-8")
        )
    ]


def is_covered(excess: Excess, by: Allowed) -> bool:
    return excess.measure == by.measure and Path(excess.path).match(by.pattern)


def test_functions_and_files_are_as_small_as_the_limits_say(excesses: list[Excess]) -> None:
    assert [one for one in excesses if not any(is_covered(one, allowed) for allowed in ALLOWED)] == []


@pytest.mark.parametrize("allowed", ALLOWED, ids=lambda allowed: f"{allowed.pattern}: {allowed.measure}")
def test_each_exception_is_needed(excesses: list[Excess], allowed: Allowed) -> None:
    assert any(is_covered(one, allowed) for one in excesses)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        pytest.param("def f(a, b, /, c, *, d, e): ...", [], id="five parameters of all kinds"),
        pytest.param("def f(a, b, /, c, *, d, e, f): ...", [("f", "parameters", 6)], id="six"),
        pytest.param(
            "class A:\n def f(self, a, b, c, d, e): ...\n async def g(cls, a, b, c, d, e, f): ...",
            [("g", "parameters", 6)],
            id="the object and the class are not counted",
        ),
        pytest.param(
            "def f():\n def g(a, b, c, d, e, f): ...", [("g", "parameters", 6)], id="a function in a function"
        ),
        pytest.param("def f():" + "\n x = 1" * 49, [], id="fifty lines"),
        pytest.param("def f():" + "\n x = 1" * 50, [("f", "lines of a function", 51)], id="fifty-one lines"),
        pytest.param("x = 1\n" * 401, [("", "lines of a file", 401)], id="a long file"),
    ],
)
def test_what_is_counted(source: str, found: list[tuple[str, str, int]]) -> None:
    assert [one[1:] for one in find_excesses("a.py", source)] == found
