"""Completion by a real shell, through the script that `embedserve completion` prints."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from embedserve_runtime.commands.cli import main
from embedserve_runtime.commands.completion import SHELLS
from embedserve_runtime.store.manifest import ModelName, ModelReference

PROGRAM = "import sys; from embedserve_runtime.commands.cli import main; sys.exit(main())"
REPOSITORY = "lab/model"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PATH with the command in it, as an installation has it."""
    folder = tmp_path_factory.mktemp("bin")
    file = folder / "embedserve"
    file.write_text(f"#!{sys.executable}\n{PROGRAM}\n")
    file.chmod(0o755)
    return folder


def print_script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_reads_the_script(shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "script"
    script.write_text(print_script(shell, capsys))
    subprocess.run([shell, "-n", str(script)], check=True)


def complete(script: str, line: str, program: Path, **variables: str) -> list[str]:
    """Return what bash offers behind `line`, in the order of the program."""
    words = line.split(" ")
    command = (
        f"{script}\nCOMP_WORDS=({' '.join(words)} {'' if words[-1] else repr('')})\nCOMP_CWORD={len(words) - 1}\n"
        # Outside of an interactive line there is no completion whose options could be changed.
        "compopt() { :; }\n"
        '_embedserve_completion embedserve\nprintf "%s\\n" "${COMPREPLY[@]}"'
    )
    environment = {**os.environ, "PATH": f"{program}:{os.environ['PATH']}", **variables}
    printed = subprocess.run(
        ["bash", "-c", command], check=True, capture_output=True, text=True, env=environment
    )
    assert printed.stderr == ""
    return printed.stdout.split()


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("embedserve s", ["serve", "store", "self-test"]),
        ("embedserve serve m --prec", ["--precision"]),
        ("embedserve serve m --pooling me", ["mean", "mean_sqrt"]),
        ("embedserve serve m --pooling = me", ["mean", "mean_sqrt"]),
        ("embedserve store ver", ["verify"]),
        ("embedserve completion z", ["zsh"]),
        ("embedserve serve la", [REPOSITORY]),
    ],
)
def test_bash_completes_commands_flags_values_and_models_of_the_store(
    line: str, want: list[str], program: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "refs").mkdir()
    name = ModelName(source=REPOSITORY, revision="main")
    reference = ModelReference(name=name, commit="0" * 40, digest="0" * 64)
    (tmp_path / "refs" / "key.json").write_text(reference.model_dump_json())
    script = print_script("bash", capsys)
    assert complete(script, line, program, EMBEDSERVE_MODEL__STORE=str(tmp_path)) == want


def test_a_shell_that_shows_descriptions_gets_one_sentence(program: Path) -> None:
    printed = subprocess.run(
        ["embedserve"],
        check=True,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PATH": f"{program}:{os.environ['PATH']}",
            "_EMBEDSERVE_COMPLETE": "zsh_complete",
            "COMP_WORDS": "embedserve serve m --prec",
            "COMP_CWORD": "3",
        },
    )
    assert printed.stdout.splitlines() == ["plain", "--precision", "Precision of weights and products."]
