"""The metrics page: complete from the first scrape, right whatever happens to requests, summed over front ends."""

from __future__ import annotations

import re

import numpy as np
import pytest

from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.engine import MemoryStatus
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.frontends.context import build_request_series
from embedserve_runtime.runners.base import Runner
from embedserve_runtime.telemetry.metrics import Metrics
from embedserve_runtime.telemetry.requests import RequestFacts, RequestMetrics
from embedserve_runtime.telemetry.series import Histogram, SeriesLayout
from tests.support.in_process_server import InProcessServer, serve_in_process
from tests.support.tiny_runners import TinyRunner, build_mean_run


def series_of(page: str) -> set[str]:
    """Names with labels, without values."""
    return {line.rpartition(" ")[0] for line in page.splitlines() if not line.startswith("#")}


def not_finite(batch: PackedBatch) -> FloatArray:
    return np.full((len(batch.lengths), 8), np.nan, dtype=np.float32)


REQUESTS = {
    200: {"inputs": "hello"},
    422: {"inputs": {}},
    400: {"inputs": []},
    504: {"inputs": "hello"},
}


async def ask_everything(server: InProcessServer) -> None:
    for status, body in REQUESTS.items():
        headers = {"x-embedserve-timeout": "1e-9"} if status == 504 else {}
        answer = await server.client.post("/embed", json=body, headers=headers)
        assert answer.status_code == status
    assert (await server.client.post("/embed", content=b"{")).status_code == 400
    assert (await server.client.get("/nowhere")).status_code == 404


async def test_no_series_appears_after_the_first_scrape_and_all_are_explained() -> None:
    async with serve_in_process() as server:
        first = server.metrics.page().decode()
        await ask_everything(server)
        later = server.metrics.page().decode()
    assert series_of(later) == series_of(first)
    families = set(re.findall(r"^# TYPE (\S+) ", first, re.MULTILINE))
    explained = set(re.findall(r"^# HELP (\S+) \S", first, re.MULTILINE))
    assert families == explained
    assert len(families) > 40


async def test_every_status_is_counted_once_and_nothing_stays_in_flight() -> None:
    async with serve_in_process() as server:
        await ask_everything(server)
        counts = {
            status: server.get_metric("embedserve_requests_total", {"route": "/embed", "status": str(status)})
            for status in (200, 400, 422, 504)
        }
        assert counts == {200: 1, 400: 2, 422: 1, 504: 1}
        assert server.get_metric("embedserve_requests_total", {"route": "other", "status": "404"}) == 1
        assert server.get_metric("embedserve_request_duration_seconds_count", {"route": "/embed"}) == 5
        assert server.get_metric("embedserve_requests_in_flight") == 0
        assert server.get_metric("te_request_success", {"method": "single"}) == 1


async def test_a_vector_that_is_no_number_is_counted_by_its_cause() -> None:
    async with serve_in_process(not_finite) as server:
        assert (await server.client.post("/embed", json={"inputs": "a"})).status_code == 500
        assert server.get_metric("te_request_failure", {"err": "missing_values"}) == 1


def test_the_page_is_the_sum_of_all_front_ends() -> None:
    series = build_request_series()
    metrics = Metrics(series)
    other_front_ends = [RequestMetrics(series, series.layout.new_row()) for _ in range(2)]
    for front in other_front_ends:
        metrics.add_row(front.row)
    for index, front in enumerate((metrics.requests, *other_front_ends)):
        for _ in range(index + 1):
            front.request_done("/embed", 200, 0.5, RequestFacts(None, True, 2, [3, 4]))
        front.work_started()
    labels = {"route": "/embed", "status": "200"}
    read_value = metrics.registry.get_sample_value
    assert read_value("embedserve_requests_total", labels) == 6
    assert read_value("te_embed_success") == 12
    assert read_value("te_request_input_length_sum") == 42
    assert read_value("embedserve_requests_in_flight") == 3
    series.clear_gauges(other_front_ends[0].row)
    assert read_value("embedserve_requests_in_flight") == 2
    assert read_value("embedserve_requests_total", labels) == 6


def test_a_value_on_a_bound_counts_in_the_bucket_of_that_bound() -> None:
    layout = SeriesLayout()
    family = layout.add_histogram("h", "text", (1.0, 2.0))
    row = layout.new_row()
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        Histogram(family, row).observe(value)
    (metric,) = layout.metrics([row])
    got = [(sample.name, sample.labels.get("le"), sample.value) for sample in metric.samples]
    assert got == [
        ("h_bucket", "1", 2),
        ("h_bucket", "2", 4),
        ("h_bucket", "+Inf", 5),
        ("h_count", None, 5),
        ("h_sum", None, 7.5),
    ]


def test_the_onnx_engine_says_that_it_pads_nothing(minilm_runner: Runner) -> None:
    batch = PackedBatch.pack([np.full(length, 7, dtype=np.int32) for length in (4, 9, 9)])
    assert minilm_runner.run(batch, OutputKind.DENSE).padding == 0


@pytest.mark.parametrize(
    ("max_batch_tokens", "want"),
    [
        pytest.param(None, 2000, id="memory sets no limit"),
        pytest.param(500, 500, id="after memory ran out"),
        pytest.param(3000, 2000, id="a limit above the budget"),
    ],
)
async def test_the_page_has_the_limit_that_memory_sets_and_how_often_it_ran_out(
    max_batch_tokens: int | None, want: int
) -> None:
    runner = TinyRunner(build_mean_run(), memory=MemoryStatus(3, max_batch_tokens))
    async with serve_in_process() as server:
        server.metrics.model_loaded(runner.card, 2000, server.dispatcher, [runner])
        assert server.get_metric("embedserve_engine_max_batch_tokens", {"engine": "0"}) == want
        assert server.get_metric("embedserve_out_of_memory_total", {"engine": "0"}) == 3
