"""Standard output that cannot be written to, and locales that do not have its characters."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.server_process import PROGRAM

COMMANDS = [["--help"], ["completion", "bash"], ["store", "verify"]]


def run(
    words: Sequence[str], variables: Mapping[str, str] | None = None, redirection: str = ""
) -> tuple[int, str]:
    """Run a command in a shell; return its exit code and its standard error."""
    command = ["sh", "-c", f'exec "$0" -c "$@" {redirection}', sys.executable, PROGRAM, *words]
    completed = subprocess.run(
        command,
        env={**os.environ, **(variables or {})},
        capture_output=True,
        check=False,
    )
    return completed.returncode, completed.stderr.decode()


@pytest.fixture
def store(tmp_path: Path) -> Mapping[str, str]:
    return {"EMBEDSERVE_MODEL__STORE": str(tmp_path)}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_full_disk_behind_the_output_is_one_line(words: list[str], store: Mapping[str, str]) -> None:
    want = "embedserve: the output cannot be written: No space left on device\n"
    assert run(words, store, ">/dev/full") == (1, want)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_closed_output_is_discarded(words: list[str], store: Mapping[str, str]) -> None:
    assert run(words, store, ">&-") == (0, "")


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_an_output_that_nobody_reads_any_more_is_silent(words: list[str], store: Mapping[str, str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-c", PROGRAM, *words]
    environment = {**os.environ, **store}
    completed = subprocess.run(command, env=environment, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (completed.returncode, completed.stderr) == (128 + signal.SIGPIPE, b"")


def test_characters_that_the_locale_does_not_have_are_escaped(tmp_path: Path) -> None:
    folder = tmp_path / "m\u00f8del \u2713"
    folder.mkdir()
    variables = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    assert run(["store", "verify", "--store", str(folder)], variables) == (0, "")
