"""The output of commands on a real pseudo-terminal, and on a pipe."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from embedserve_runtime.store import publish_folder
from tests.support.models import small_minilm
from tests.support.server_process import PROGRAM
from tests.support.terminal import TerminalRun, run_in_terminal

SAYS_WHETHER_RICH_IS_LOADED = (
    "import atexit, sys; atexit.register(lambda: print('rich:', 'rich' in sys.modules))"
)


def run_on_terminal(words: Sequence[str], variables: Mapping[str, str] | None = None) -> TerminalRun:
    return run_in_terminal([sys.executable, "-c", PROGRAM, *words], variables)


def skip_bars(printed: TerminalRun, begin: str) -> str:
    """Return the plain text from `begin` on; where the machine is slow there are progress bars before it."""
    return printed.plain[printed.plain.index(begin) :]


def run_with_pipe(words: Sequence[str], before: str = "") -> str:
    """Run a command that succeeds, and return its standard output."""
    command = [sys.executable, "-c", f"{before}\n{PROGRAM}", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_minilm(tmp_path_factory.mktemp("models") / "minilm")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    publish_folder(
        tmp_path, "artifacts", "abc", lambda folder: (folder / "f").touch(), made_from="sha256:[red]0"
    )
    return tmp_path


def test_inspect_draws_a_table_on_a_terminal(minilm: Path) -> None:
    printed = run_on_terminal(["inspect", str(minilm)])
    assert printed.code == 0
    lines = skip_bars(printed, "╭").splitlines()
    assert lines[0].endswith("╮")
    assert any(line.startswith("│ Dimensions") and "384" in line for line in lines)
    assert max(map(len, lines)) <= 100
    assert "\x1b[1m" in printed.text


def test_no_color_leaves_the_table_without_colours(minilm: Path) -> None:
    printed = run_on_terminal(["inspect", str(minilm)], {"NO_COLOR": "1"})
    assert "│ Dimensions" in printed.plain
    assert not any(f"\x1b[{code}" in printed.text for code in ("31", "32", "33", "34", "35", "36"))


@pytest.mark.parametrize("variables", [{"TERM": "dumb"}], ids=["a dumb terminal"])
def test_a_terminal_that_cannot_draw_gets_the_plain_lines(minilm: Path, variables: dict[str, str]) -> None:
    printed = run_on_terminal(["inspect", str(minilm)], variables)
    assert printed.text.startswith("Model          ")


def test_inspect_prints_plain_lines_on_a_pipe_and_does_not_load_the_library_of_tables(minilm: Path) -> None:
    printed = run_with_pipe(["inspect", str(minilm)], before=SAYS_WHETHER_RICH_IS_LOADED)
    assert printed.startswith("Model          ")
    assert printed.endswith("rich: False\n")


def test_an_output_that_nobody_reads_any_more_is_no_error(minilm: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-c", PROGRAM, "inspect", "--json", str(minilm)]
    completed = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (completed.returncode, completed.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize("words", [["inspect", "--json"], ["store", "list", "--json"]], ids=str)
def test_json_is_the_same_on_a_terminal(words: list[str], minilm: Path, store: Path) -> None:
    words = [*words, str(minilm)] if words[0] == "inspect" else [*words, "--store", str(store)]
    begin = "{" if words[0] == "inspect" else "["
    shown, piped = json.loads(skip_bars(run_on_terminal(words), begin)), json.loads(run_with_pipe(words))
    for facts in (shown, piped):
        if isinstance(facts, list):
            facts[0].pop("ageSeconds")
    assert shown == piped


def test_the_store_is_a_table_on_a_terminal_whose_cells_are_no_markup(store: Path) -> None:
    printed = run_on_terminal(["store", "list", "--store", str(store)])
    lines = printed.plain.splitlines()
    assert [cell.strip() for cell in lines[1].split("│")[1:-1]] == [
        "Kind",
        "Name",
        "MB",
        "Made from",
        "Licence",
    ]
    assert [cell.strip() for cell in lines[3].split("│")[1:-1]] == [
        "artifact",
        "abc",
        "0.0",
        "sha256:[red]0",
        "-",
    ]
    piped = run_with_pipe(["store", "list", "--store", str(store)])
    assert piped == "artifact   abc         0.0 MB  sha256:[red]0\n"
