"""The order of what needs a card: what is run, what is left for the next time, and what a cut run keeps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.gpu_session import STEPS, End, Step, left_to_do, run, seconds_for

FIRST, SECOND = Step("first", ("platform",), 60), Step("second", ("platform",), 60)


@pytest.mark.parametrize(
    ("ended", "only", "want"),
    [
        pytest.param({}, "", [FIRST, SECOND], id="nothing has ended"),
        pytest.param({"first": End(0, 1.0)}, "", [SECOND], id="behind what has ended"),
        pytest.param({"first": End(None, 60.0)}, "", [SECOND], id="not again what reached its limit"),
        pytest.param({}, "second", [SECOND], id="by name"),
    ],
)
def test_a_run_goes_on_behind_what_has_ended(ended: dict[str, End], only: str, want: list[Step]) -> None:
    assert left_to_do([FIRST, SECOND], ended, only) == want


@pytest.mark.parametrize(("remaining", "want"), [(1000.0, 60), (30.0, 30.0), (5.0, None)])
def test_a_step_gets_its_limit_or_what_is_left_unless_that_is_too_little(
    remaining: float, want: float | None
) -> None:
    assert seconds_for(FIRST, remaining) == want


def test_what_a_step_says_and_how_it_ends_is_kept(tmp_path: Path) -> None:
    (tmp_path / "table.json").write_text("[1]")
    good = run(Step("good", ("json.tool", "{results}/table.json"), 60), tmp_path, 60)
    bad = run(Step("bad", ("json.tool", "{results}/missing.json"), 60), tmp_path, 60)
    assert (good.code, bad.code) == (0, 2)
    log = (tmp_path / "gpu-session.log").read_text()
    assert json.loads("".join(log.split("\n== good: exit code 0\n")[0].splitlines()[1:])) == [1]
    assert "== bad: exit code 2" in log


def test_a_step_at_its_limit_is_ended(tmp_path: Path) -> None:
    end = run(Step("endless", ("http.server", "0", "--bind", "127.0.0.1"), 60), tmp_path, 0.5)
    assert end.code is None
    assert "== endless: ended at its limit" in (tmp_path / "gpu-session.log").read_text()


def test_all_steps_fit_into_half_an_hour() -> None:
    assert sum(step.limit for step in STEPS) <= 30 * 60
    assert len({step.name for step in STEPS}) == len(STEPS)
