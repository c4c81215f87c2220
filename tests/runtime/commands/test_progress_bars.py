"""Bars for long work on a real pseudo-terminal; lines as ever elsewhere."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from e2e.hub import HubServer
from e2e.hub.faults import Fault, FaultKind
from embedserve_runtime.commands.progress_bars import build_bars, format_amount
from embedserve_runtime.progress import (
    ReadState,
    WorkCounter,
    WorkState,
    display_work_by,
    track_time,
    track_work,
)
from embedserve_runtime.sources.progress import Progress
from tests.support.models import minilm_folder, small_minilm
from tests.support.server_process import HEEDS_SIGINT, PROGRAM, start_server
from tests.support.terminal import TerminalRun, run_in_terminal

REPOSITORY = "lab/model"
BAR = "━"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("state", "want"),
    [
        (
            WorkState("fetching", 45.2e6, 91.6e6, "bytes", 12.3e6, 3.8),
            "45.2/91.6 MB, 12.3 MB/s, 0:00:04 left",
        ),
        (
            WorkState("reading", 3e8, 6e8, "parameters", 5e6, 60.0),
            "300.0/600.0M parameters, 5.0M parameters/s, 0:01:00 left",
        ),
        (WorkState("trying", 0, 4_300, "tokens", 0, None), "0.0/4.3k tokens"),
        (WorkState("choosing", 8, 24, "products", 21, 1), "8/24 products, 21 products/s, 0:00:01 left"),
        (WorkState("measuring", 4, 10, "seconds", 1, 6), "4/10 s, 0:00:06 left"),
        (WorkState("preparing", 0, None, "seconds", 0, None), ""),
    ],
    ids=lambda value: value.description if isinstance(value, WorkState) else "",
)
def test_a_bar_says_how_much_how_fast_and_how_long_yet(state: WorkState, want: str) -> None:
    assert format_amount(state) == want


def test_a_bar_stays_on_one_line_of_a_narrow_terminal() -> None:
    terminal = io.StringIO()
    console = Console(file=terminal, width=80)
    console.print(build_bars([WorkState("reading", 3e8, 6e8, "parameters", 5e6, 60.0)]))
    (line,) = terminal.getvalue().splitlines()
    assert line.rstrip().endswith("0:01:00 left")


def test_the_rate_and_the_time_that_remains_are_those_since_the_beginning() -> None:
    clock = Clock()
    counter = WorkCounter("reading", 100, "tokens", clock)
    assert counter.get_state() == WorkState("reading", 0, 100, "tokens", 0, None)
    clock.now += 2
    counter.advance(20)
    assert counter.get_state() == WorkState("reading", 20, 100, "tokens", 10, 8)


def test_work_is_displayed_as_long_as_it_goes_on_and_by_nobody_unless_asked_for() -> None:
    shown: list[ReadState] = []

    @contextmanager
    def display(read_state: ReadState) -> Iterator[None]:
        shown.append(read_state)
        yield
        shown.remove(read_state)

    with display_work_by(display), track_work("reading", 4, "tokens") as advance:
        advance(3)
        assert [read_state().done for read_state in shown] == [3]
    assert shown == []
    clock = Clock()
    with display_work_by(display), track_time("measuring", 10, clock):
        clock.now += 4
        assert [(read_state().done, read_state().seconds_remaining) for read_state in shown] == [(4, 6)]
        clock.now += 40
        assert [(read_state().done, read_state().seconds_remaining) for read_state in shown] == [(10, 0)]
    with track_work("reading", 4, "tokens") as advance:
        advance(1)
        assert shown == []


def test_a_fetch_is_work_in_bytes_whose_rate_is_that_of_the_fetch() -> None:
    clock = Clock()
    progress = Progress(clock)
    assert progress.get_work_state() == WorkState("resolving", 0, None, "bytes", 0, None)
    progress.add_expected(100)
    clock.now += 2
    progress.add_received(50)
    assert progress.get_work_state() == WorkState("resolving", 50, 100, "bytes", 25, 2)


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_minilm(tmp_path_factory.mktemp("models") / "minilm")


def fetch_in_terminal(tmp_path: Path, *flags: str) -> TerminalRun:
    """Fetch a model from a hub that is slow about its weights."""
    folder = small_minilm(tmp_path / "repositories" / REPOSITORY / "main")
    size = (folder / "model.safetensors").stat().st_size
    with HubServer(tmp_path / "repositories") as hub:
        hub.faults.add(Fault(FaultKind.SLOW, path="*/model.safetensors", amount=size // 2))
        return run_in_terminal(
            [sys.executable, "-c", PROGRAM, "fetch", REPOSITORY, "--store", str(tmp_path / "store"), *flags],
            {"EMBEDSERVE_MODEL__ENDPOINT": hub.url},
        )


def test_a_fetch_shows_a_bar_between_its_log_lines_and_takes_it_away(tmp_path: Path) -> None:
    printed = fetch_in_terminal(tmp_path)
    assert printed.code == 0
    assert f"fetching {BAR}" in printed.plain
    assert "B/s" in printed.plain
    assert " left" in printed.plain
    result = printed.plain[printed.plain.index("{\n") :]
    assert json.loads(result)["model"]["source"] == REPOSITORY


@pytest.mark.parametrize("flags", [["--log-format", "json"]], ids=["logs as JSON"])
def test_a_terminal_whose_logs_are_json_has_no_bars(tmp_path: Path, flags: list[str]) -> None:
    assert BAR not in fetch_in_terminal(tmp_path, *flags).text


def test_a_conversion_shows_how_far_each_variant_is(tmp_path: Path) -> None:
    words = ["convert", str(minilm_folder()), "--store", str(tmp_path), "--onnx-precision", "float32"]
    printed = run_in_terminal([sys.executable, "-c", PROGRAM, *words])
    assert printed.code == 0
    assert f"trying float32 {BAR}" in printed.plain
    assert "tokens/s" in printed.plain
    assert "model converted" in printed.plain


def test_a_server_whose_log_is_no_terminal_does_not_load_what_draws(minilm: Path, tmp_path: Path) -> None:
    loaded = (
        "import atexit, sys; atexit.register(lambda: print('rich:', 'rich' in sys.modules, file=sys.stderr))"
    )
    with start_server(minilm, tmp_path, before=loaded) as server:
        server.wait_until_ready()
        server.stop(signal.SIGTERM)
        assert server.wait_for_exit() == 0
    assert server.lines[-1]["message"] == "rich: False"


def test_a_conversion_with_pipes_writes_no_control_characters(minilm: Path, tmp_path: Path) -> None:
    words = [
        "convert",
        str(minilm),
        "--store",
        str(tmp_path),
        "--threads",
        "1",
        "--onnx-precision",
        "float32",
    ]
    completed = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=True
    )
    assert "\x1b" not in completed.stdout + completed.stderr
    assert json.loads(completed.stderr.splitlines()[-1])["message"] == "model converted"


def test_ctrl_c_ends_a_fetch_without_a_traceback(tmp_path: Path) -> None:
    small_minilm(tmp_path / "repositories" / REPOSITORY / "main")
    with HubServer(tmp_path / "repositories") as hub:
        hub.faults.add(Fault(FaultKind.SLOW, path="*/model.safetensors", amount=1000))
        command = [*HEEDS_SIGINT, sys.executable, "-c", PROGRAM, "fetch", REPOSITORY]
        command += ["--store", str(tmp_path / "store")]
        environment = {**os.environ, "EMBEDSERVE_MODEL__ENDPOINT": hub.url}
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if json.loads(line)["message"] == "fetching":
                    break
            process.send_signal(signal.SIGINT)
            errors = process.stderr.read()
    assert process.returncode == 128 + signal.SIGINT
    assert errors.endswith("embedserve: interrupted\n")
    assert "Traceback" not in errors
