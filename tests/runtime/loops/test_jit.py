"""What processes keep of their compiled loops."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

LOOP = """
from embedserve_runtime.loops.jit import count_compiled, loop

@loop("int64(int64)")
def doubled(number: int) -> int:
    return 2 * number
"""
PROGRAM = """
from example import count_compiled, doubled

result, loops = doubled(21), count_compiled()
print(result, loops.compiled, loops.from_cache)
"""


def run(program: str, folder: Path, sources: Path, **more: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(sources), *sys.path])
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder), "PYTHONPATH": paths, **more}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, text=True, capture_output=True, check=False
    )


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    (tmp_path / "example.py").write_text(LOOP)
    return tmp_path


def test_a_second_process_takes_the_code_of_the_first(sources: Path, tmp_path: Path) -> None:
    outputs = [run(PROGRAM, tmp_path / "kept", sources).stdout for _ in range(2)]
    assert outputs == ["42 1 0\n", "42 0 1\n"]


def test_a_lower_level_has_code_of_its_own_in_the_same_folder(sources: Path, tmp_path: Path) -> None:
    outputs = [
        run(PROGRAM, tmp_path / "kept", sources, NUMBA_CPU_NAME=target).stdout
        for target in ("x86-64-v2", "x86-64", "x86-64-v2")
    ]
    assert outputs == ["42 1 0\n", "42 1 0\n", "42 0 1\n"]


def test_where_nothing_can_be_kept_loops_are_compiled_in_memory_and_the_log_says_so(
    sources: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    done = run(PROGRAM, tmp_path / "file" / "below", sources)
    assert done.stdout == "42 1 0\n"
    assert "set NUMBA_CACHE_DIR to a folder that can be written" in done.stderr


def test_a_loop_refuses_other_types_than_it_was_written_for(sources: Path, tmp_path: Path) -> None:
    done = run("import example; example.doubled('text')", tmp_path / "kept", sources)
    assert "No matching definition for argument type" in done.stderr
