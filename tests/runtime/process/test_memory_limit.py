"""A real server in a cgroup: with the memory that was planned nothing is ended and nothing fails, with too little it
refuses to start and says how much would do."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from embedserve_runtime.config import load_config
from embedserve_runtime.loading.model_sizes import find_model_sizes
from embedserve_runtime.memory.load import describe_load
from embedserve_runtime.memory.plan import MemoryPlan, ServingLoad, plan_memory
from embedserve_runtime.memory.sizes import MIB
from embedserve_runtime.model.reading import read_card
from embedserve_runtime.model.tensors import ModelTensors
from tests.support.memory_group import limit_memory
from tests.support.model_shapes import CONFIGS
from tests.support.monitored_server import start_monitored_server
from tests.support.random_models import save_random_model
from tests.support.server_process import start_server
from tests.support.worst_mix import build_worst_mix, send_worst_mix

CPUS = 2
BODY_BYTES = 4 * MIB
SECONDS = float(os.environ.get("EMBEDSERVE_MEMORY_SECONDS", "0"))
"""How long each family is sent the worst requests; 0 for each request once."""
# In `make test` one each of: plain attention, learned bias, long texts with windows. `make soak` runs all.
FAMILIES = tuple(CONFIGS) if SECONDS else ("bge-base-en-v1.5", "all-mpnet-base-v2", "ModernBERT-base")


def _plan(folder: Path, settings: Mapping[str, Any]) -> tuple[MemoryPlan, ServingLoad]:
    config = load_config(flags=settings)
    card = read_card(folder, "local", config.model)
    sizes, engine, _ = find_model_sizes(card, ModelTensors(folder), config)
    load = describe_load(config, card.max_length, engine, CPUS)
    return plan_memory(sizes, load), load


def _build_settings(folder: Path, max_length: int) -> dict[str, Any]:
    return {
        "model": {"source": str(folder), "pooling": "mean", "max_length": max_length},
        "engine": {"kind": "onnx", "threads": CPUS},
        "batching": {"max_batch_tokens": 1_024, "request_timeout_seconds": 3_000.0},
        "server": {"max_body_bytes": BODY_BYTES},
    }


@pytest.mark.thorough
@pytest.mark.parametrize("name", FAMILIES)
def test_with_the_planned_memory_the_worst_requests_end_nothing(tmp_path: Path, name: str) -> None:
    save_random_model(name, tmp_path / "model", layers=2)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    longest = config.get("max_position_embeddings", config.get("n_positions"))
    settings = _build_settings(tmp_path / "model", min(longest - 2, 2_048))
    plan, load = _plan(tmp_path / "model", settings)
    with (
        limit_memory(plan.limit) as group,
        start_monitored_server(tmp_path / "model", tmp_path / "server", settings, group.enter) as server,
    ):
        memory = httpx.get(f"{server.server.address}/info").json()["memory"]
        assert memory["lowered"] == []
        assert memory["planned_bytes"] <= memory["limit_bytes"] <= plan.limit
        assert server.read_metric("embedserve_memory_limit_bytes") == memory["limit_bytes"]
        bodies = build_worst_mix(load.max_length, load.queue_inputs, BODY_BYTES)
        statuses = send_worst_mix(server.server.address, bodies, SECONDS)
        assert set(statuses) <= {200, 413, 429}, statuses
        assert statuses[200] >= len(bodies) // 2
        server.assert_is_sound()
        assert group.count_kills() == 0


@pytest.mark.thorough
def test_with_half_the_memory_it_does_not_start_and_says_how_much_would_do(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save_random_model("bge-m3", folder, layers=8)
    settings = _build_settings(folder, 256)
    plan, _ = _plan(folder, settings)
    with limit_memory(plan.limit // 2) as group:
        with start_server(folder, tmp_path, settings, group.enter) as server:
            assert server.wait_for_exit() == 1
        assert group.count_kills() == 0
    termination_message = json.loads((tmp_path / "termination").read_text())
    assert termination_message["reason"] == "MemoryTooSmall"
    assert not termination_message["retryable"]
    match = re.search(r"a limit of (\d+)Mi", termination_message["message"])
    assert match is not None
    assert int(match[1]) == plan.limit // MIB


@pytest.mark.thorough
def test_with_somewhat_less_it_serves_less_at_the_same_time_and_says_what(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save_random_model("bge-base-en-v1.5", folder, layers=2)
    settings = _build_settings(folder, 256)
    settings["batching"] |= {"max_batch_tokens": 16_384, "max_queue_inputs": 2_000}
    plan, _ = _plan(folder, settings)
    with (
        limit_memory(plan.limit // 2) as group,
        start_monitored_server(folder, tmp_path / "server", settings, group.enter) as server,
    ):
        info = httpx.get(f"{server.server.address}/info").json()
        assert info["max_batch_tokens"] < 16_384
        assert any("tokens of a batch" in text for text in info["memory"]["lowered"])
        assert any(line["message"].startswith("the container's memory limit") for line in server.server.lines)
        bodies = build_worst_mix(256, 1_000, BODY_BYTES)
        assert set(send_worst_mix(server.server.address, bodies)) <= {200, 413, 429}
        assert group.count_kills() == 0
