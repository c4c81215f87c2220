"""The token budget is measured while nobody asks for anything, and a request is never kept waiting for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.process import budget
from embedserve_runtime.process.budget import BudgetMeasurement, measure_when_idle
from embedserve_runtime.scheduling.calibration import MIN_BUDGET, SampleTexts
from tests.support.models import small_minilm
from tests.support.server_process import start_server


@dataclass
class Traffic:
    """Requests as a dispatcher tells of them. idle: what is said one time after another, and then that there is no
    request. admits_at: the batches of a measurement, counted over all, during which a request comes in."""

    idle: Iterator[bool] = field(default_factory=lambda: iter(()))
    admits_at: frozenset[int] = frozenset()
    num_admitted: int = 0
    batches: int = 0

    @property
    def is_idle(self) -> bool:
        return next(self.idle, True)

    def run(self, _: PackedBatch) -> None:
        self.batches += 1
        self.num_admitted += self.batches in self.admits_at

    def build_measurement(self) -> BudgetMeasurement:
        return BudgetMeasurement(self.run, SampleTexts(16, 100, max_batch_tokens=MIN_BUDGET), concurrency=1)


# One before the measurement, and three for the only budget.
BATCHES = 4


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "PAUSE_SECONDS", 0.0)


@pytest.mark.parametrize(
    ("traffic", "want_batches"),
    [
        pytest.param(Traffic(), BATCHES, id="no request"),
        pytest.param(Traffic(idle=iter([False, False])), BATCHES, id="requests at first"),
        pytest.param(Traffic(admits_at=frozenset({1})), 1 + BATCHES, id="one beside the first batch"),
        pytest.param(Traffic(admits_at=frozenset({2, 4})), 2 + 2 + BATCHES, id="two, each in a measurement"),
        pytest.param(Traffic(admits_at=frozenset({4})), 4 + BATCHES, id="one beside the last batch"),
    ],
)
async def test_a_measurement_ends_with_the_batch_beside_which_a_request_comes_in_and_begins_anew(
    traffic: Traffic, want_batches: int
) -> None:
    calibration = await measure_when_idle(traffic.build_measurement(), traffic, lambda: False)
    assert calibration is not None
    assert calibration.budget == MIN_BUDGET
    assert traffic.batches == want_batches


@pytest.mark.parametrize(
    ("traffic", "is_stopping"),
    [
        pytest.param(Traffic(idle=iter([False] * budget.MAX_TRIES)), False, id="never idle"),
        pytest.param(Traffic(admits_at=frozenset(range(10_000))), False, id="a request beside each batch"),
        pytest.param(Traffic(), True, id="the server stops"),
    ],
)
async def test_a_server_that_is_never_idle_keeps_the_budget_that_it_has(
    traffic: Traffic, is_stopping: bool
) -> None:
    assert await measure_when_idle(traffic.build_measurement(), traffic, lambda: is_stopping) is None


MEASURES_ANOTHER_BUDGET = """
from embedserve_runtime.process import budget
from embedserve_runtime.scheduling.calibration import Calibration
def measure(self, seconds=budget.CALIBRATION_SECONDS, check=None):
    return Calibration(777 if seconds == budget.CALIBRATION_SECONDS else 333, 1e4, ())
budget.BudgetMeasurement.measure = measure
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_a_server_answers_before_its_budget_is_measured_and_tells_it_then(
    tmp_path: Path, workers: int
) -> None:
    model = small_minilm(tmp_path / "model")
    settings: dict[str, dict[str, Any]] = {
        "batching": {"max_batch_tokens": "auto"},
        "server": {"http_workers": workers},
    }
    with start_server(model, tmp_path, settings, MEASURES_ANOTHER_BUDGET) as server:
        server.wait_until_ready()
        assert server.lines[-1]["max_batch_tokens"] == 333
        assert httpx.post(f"{server.address}/embed", json={"inputs": "a"}).status_code == 200
        assert server.wait_for("token budget chosen")["max_batch_tokens"] == 777
        worker_ids: set[str] = set()
        while len(worker_ids) < workers:
            answer = httpx.get(f"{server.address}/info")
            if answer.json()["max_batch_tokens"] == 777:
                worker_ids.add(answer.headers["x-request-id"].partition("-")[0])
        page = httpx.get(f"{server.management}/metrics").text
    assert "embedserve_max_batch_tokens 777.0" in page
    assert [line["message"] for line in server.lines].count("token budget chosen") == 1
