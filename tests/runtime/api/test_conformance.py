"""Every row of the conformance table, against a server without sockets."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import SecretStr

from embedserve_runtime.api.api_keys import ApiKeys
from embedserve_runtime.api.clients import ClientIdentifier
from embedserve_runtime.api.memory import RequestMemory
from embedserve_runtime.config import BatchingSettings
from embedserve_runtime.errors import EngineFailure
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.model.heads.description import ScoreFunction
from embedserve_runtime.telemetry.series import MetricFamily
from tests.runtime.api.conformance import PAGE, SECTIONS, Row, page
from tests.support.in_process_server import InProcessServer, serve_in_process
from tests.support.tiny_models import build_card, build_classifier_card, build_splade_card


def filled(value: float) -> Any:
    def run(batch: PackedBatch) -> FloatArray:
        return np.full((len(batch.lengths), 8), value, dtype=np.float32)

    return run


def broken(batch: PackedBatch) -> FloatArray:
    raise EngineFailure("out of memory")


RERANKER = build_classifier_card("LABEL_0", scores=ScoreFunction.SIGMOID)
SERVERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "reranker": {"card": RERANKER},
    "prompted reranker": {"card": replace(RERANKER, prompts={"query": "query: "}, default_prompt="query")},
    "classifier": {"card": build_classifier_card("bad", "fine", "good")},
    "multi-label classifier": {
        "card": build_classifier_card("bad", "fine", "good", scores=ScoreFunction.SIGMOID)
    },
    "splade": {"card": build_splade_card()},
    "loading": {"ready": False},
    "small": {"batching": BatchingSettings(max_client_batch_size=2), "memory": RequestMemory(4_096, 2**20)},
    "full": {"memory": RequestMemory(2**20, max_pending_bytes=1)},
    "keys": {"clients": ClientIdentifier(ApiKeys([SecretStr("one"), SecretStr("two")]))},
    "not finite": {"run": filled(float("nan"))},
    "zero": {"run": filled(0.0)},
    "broken": {"run": broken},
}

CASES = [
    pytest.param(row, id=f"{section}: {row.subject}") for section, rows in SECTIONS.items() for row in rows
]


@pytest.mark.parametrize("row", CASES)
async def test_row(row: Row) -> None:
    method, path = row.request.split(" ") if " " in row.request else ("POST", row.request)
    content = row.body if isinstance(row.body, bytes | None) else json.dumps(row.body).encode()
    headers = {} if isinstance(row.body, bytes | None) else {"content-type": "application/json"}
    options = {"card": build_card(prompts={"query": "query: "}), **SERVERS[row.server]}
    async with serve_in_process(**options) as server:
        answer = await server.client.request(
            method, path, content=content, headers=headers | dict(row.headers)
        )
    assert answer.status_code == row.want_status, answer.text
    assert row.check(answer), (answer.text, answer.headers)
    check_counted_once(server, answer.status_code)


def check_counted_once(server: InProcessServer, status: int) -> None:
    """One request by its status, and for `te_*` either answered as asked or failed by one cause; nothing left open."""
    series, numbers = server.metrics.series, server.metrics.requests.row

    def counts(family: MetricFamily) -> dict[tuple[str, ...], float]:
        return {
            labels: numbers[position] for labels, position in family.offsets().items() if numbers[position]
        }

    ((route, _), *_) = counts(series.requests)
    assert counts(series.requests) == {(route, str(status)): 1}
    assert counts(series.in_flight) == {}
    assert server.context.memory.pending == 0
    is_work = route in series.embedding_routes
    assert sum(counts(series.counts).values()) == is_work
    assert sum(counts(series.successes).values()) == (is_work and status == 200)
    assert sum(counts(series.failures).values()) == (is_work and status != 200)


def test_the_page_is_what_the_table_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tests.runtime.api.conformance"


def test_every_row_has_a_name_of_its_own() -> None:
    names = [row.subject for rows in SECTIONS.values() for row in rows]
    assert len(set(names)) == len(names)
