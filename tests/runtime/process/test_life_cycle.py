"""The life of a server from the command to the last answer, with the real MiniLM in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from tests.support.models import small_minilm
from tests.support.server_process import ServerProcess, send_signal_under_load, start_server
from tests.support.texts import parity_texts
from tests.support.tolerances import FP32_MAX_ABS_DIFF

SENTENCES = ["What is a vector?", "Ein Vektor ist eine Liste von Zahlen.", "The weather is fine."]


@pytest.fixture(scope="module")
def server(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with start_server(minilm, tmp_path_factory.mktemp("server")) as started:
        started.wait_until_ready()
        yield started


def test_vectors_over_http_equal_sentence_transformers(server: ServerProcess, minilm: Path) -> None:
    from sentence_transformers import SentenceTransformer

    texts = SENTENCES + parity_texts(20)
    want_vectors = SentenceTransformer(str(minilm), device="cpu").encode(texts)
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="unused") as client:
        answer = client.embeddings.create(model="any", input=texts)
    vectors = np.array([item.embedding for item in answer.data], dtype=np.float32)
    assert np.abs(vectors - want_vectors).max() <= FP32_MAX_ABS_DIFF
    tei = httpx.post(f"{server.address}/embed", json={"inputs": texts}, timeout=60).json()
    np.testing.assert_array_equal(np.array(tei, dtype=np.float32), vectors)


def test_probes_and_metrics_live_on_the_management_port_alone(server: ServerProcess) -> None:
    for path in ("/livez", "/readyz", "/metrics"):
        assert httpx.get(f"{server.management}{path}").status_code == 200
        missing = httpx.get(f"{server.address}{path}")
        assert (missing.status_code, "another port" in missing.json()["error"]) == (404, True)
    assert httpx.get(f"{server.address}/health").status_code == 200
    assert httpx.post(f"{server.management}/embed", json={"inputs": "a"}).status_code == 404


def test_broken_bytes_on_the_wire_do_not_end_the_server(server: ServerProcess) -> None:
    host, port = server.address.removeprefix("http://").split(":")
    for junk in (b"\x00" * 64, b"GET\r\n\r\n", b"POST /embed HTTP/1.1\r\ncontent-length: x\r\n\r\n"):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(junk)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                pass
    assert httpx.post(f"{server.address}/embed", json={"inputs": "a"}).status_code == 200


async def test_a_client_that_hangs_up_leaves_the_queue_empty(server: ServerProcess) -> None:
    host, port = server.address.removeprefix("http://").split(":")
    body = json.dumps({"inputs": parity_texts(200) * 5}).encode()
    head = (
        b"POST /embed HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        % len(body)
    )
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(head + body)
    await writer.drain()
    async with httpx.AsyncClient(base_url=server.management) as client:
        await until(client, "embedserve_queue_depth", lambda value: value > 100)
        writer.close()
        await until(client, "embedserve_queue_depth", lambda value: value == 0)
        page = (await client.get("/metrics")).text
        after = await client.post(f"{server.address}/embed", json={"inputs": "a"})
    assert 'embedserve_requests_total{route="/embed",status="499"} 1.0' in page
    assert after.status_code == 200


async def until(client: httpx.AsyncClient, metric: str, holds: object) -> None:
    """Read the metrics until one holds; the test's own timeout is the bound."""
    assert callable(holds)
    while True:
        page = (await client.get("/metrics")).text
        value = next(float(line.split(" ")[1]) for line in page.splitlines() if line.startswith(f"{metric} "))
        if holds(value):
            return


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGHUP, pytest.param(signal.SIGINT, marks=pytest.mark.thorough)]
)
async def test_a_signal_under_load_fails_no_accepted_request(
    minilm: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """SIGTERM and SIGHUP drain first, SIGINT does not; what was accepted is answered, and the exit code is 0."""
    with start_server(minilm, tmp_path, {"server": {"endpoint_drain_seconds": 0.3}}) as server:
        server.wait_until_ready()
        statuses = await send_signal_under_load(server, number)
        assert statuses == [200] * 16
        assert server.wait_for_exit() == 0
    assert server.lines[-1]["message"] == "stopped"


def test_while_draining_probes_say_no_and_requests_are_served(tmp_path: Path) -> None:
    model = small_minilm(tmp_path / "model")
    with start_server(model, tmp_path, {"server": {"endpoint_drain_seconds": 600.0}}) as server:
        server.wait_until_ready()
        server.stop(signal.SIGTERM)
        server.wait_for("stopping")
        ready = httpx.get(f"{server.management}/readyz")
        embed = httpx.post(f"{server.address}/embed", json={"inputs": "a"})
        assert (ready.status_code, ready.json()["status"]) == (503, "Draining")
        assert (embed.status_code, embed.headers["connection"]) == (200, "close")
        server.stop(signal.SIGTERM)  # a second signal ends the drain
        assert server.wait_for_exit() == 0


WAITS_AT_IMPORT = """
import sys
class Waits:
    def find_spec(self, name, path, target=None):
        if name == "embedserve_runtime.{module}":
            import signal
            print("importing", file=sys.stderr, flush=True)
            signal.pause()
sys.meta_path.insert(0, Waits())
"""
STOPPED = "stopped while the model is loaded"
INTERRUPTED = "embedserve: interrupted"


@pytest.mark.parametrize(
    ("number", "module", "want_code"),
    [
        pytest.param(signal.SIGTERM, "commands.arguments", 143, id="SIGTERM at the very beginning"),
        pytest.param(signal.SIGTERM, "process.launch", 143, id="SIGTERM before the ports are open"),
        pytest.param(signal.SIGTERM, "process.life_cycle", 0, id="SIGTERM while the model is loaded"),
        pytest.param(signal.SIGINT, "commands.arguments", 130, id="Ctrl-C at the very beginning"),
        pytest.param(signal.SIGINT, "process.launch", 130, id="Ctrl-C before the ports are open"),
        pytest.param(signal.SIGINT, "process.life_cycle", 130, id="Ctrl-C while the model is loaded"),
    ],
)
def test_a_signal_while_libraries_are_loaded_ends_the_process_by_its_own_doing(
    minilm: Path, tmp_path: Path, number: signal.Signals, module: str, want_code: int
) -> None:
    """The first process of a container is not ended by a signal that it does not handle."""
    with start_server(minilm, tmp_path, before=WAITS_AT_IMPORT.format(module=module)) as server:
        server.wait_for("importing")
        server.stop(number)
        assert server.wait_for_exit() == want_code
    assert server.lines[-1]["message"] in {"importing", INTERRUPTED, STOPPED}
    assert (server.lines[-1]["message"] == "importing") == (want_code == 143)


IMPORTS_ONCE_THE_MODEL_IS_LOADED = """
import builtins, logging, sys, threading
loaded = threading.Event()
build = logging.getLogRecordFactory()
def build_record(*arguments, **fields):
    record = build(*arguments, **fields)
    if record.msg == "model loaded":
        loaded.set()
    return record
logging.setLogRecordFactory(build_record)
find = builtins.__import__
def find_later(name, *arguments, **options):
    if name == "embedserve_runtime.process.life_cycle":
        print("waited", loaded.wait(60), "fastapi" in sys.modules, file=sys.stderr, flush=True)
    return find(name, *arguments, **options)
builtins.__import__ = find_later
"""


def test_the_model_is_loaded_while_the_libraries_of_the_server_are_imported(
    minilm: Path, tmp_path: Path
) -> None:
    with start_server(minilm, tmp_path, before=IMPORTS_ONCE_THE_MODEL_IS_LOADED) as server:
        server.wait_until_ready()
        messages = [line["message"] for line in server.lines]
        assert httpx.post(f"{server.address}/embed", json={"inputs": "a"}).status_code == 200
    assert messages[0] == "listening, loading the model"
    assert "waited True False" in messages
    assert not any(message.startswith("huge pages") for message in messages), "they come after readiness"


LOADS_UNTIL_THE_END = """
import threading
from embedserve_runtime.process import loader
def load(*arguments):
    threading.Event().wait()
loader.prepare_model = load
"""


@pytest.mark.parametrize(
    ("number", "want_code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)], ids=["SIGTERM", "Ctrl-C"]
)
def test_a_signal_while_loading_ends_the_process_at_once(
    minilm: Path, tmp_path: Path, number: signal.Signals, want_code: int
) -> None:
    with start_server(minilm, tmp_path, before=LOADS_UNTIL_THE_END) as server:
        server.wait_for("listening")
        server.stop(number)
        assert server.wait_for_exit() == want_code
    assert server.lines[-1]["message"] == STOPPED


def test_a_model_that_cannot_be_served_ends_with_the_reason_left_behind(tmp_path: Path) -> None:
    folder = tmp_path / "empty-model"
    folder.mkdir()
    with start_server(folder, tmp_path) as server:
        assert server.wait_for_exit() == 1
    termination_message = json.loads((tmp_path / "termination").read_text())
    assert set(termination_message) == {"reason", "message", "retryable"}
    assert termination_message["reason"] == "ModelFileMissing"
    assert termination_message["retryable"] is False
    assert any(line.get("reason") == "ModelFileMissing" for line in server.lines)


def test_a_reranker_ranks(tmp_path: Path) -> None:
    folder = small_minilm(tmp_path / "reranker")
    for name in ("modules.json", "model.safetensors"):
        (folder / name).unlink()
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=36, num_hidden_layers=1, num_attention_heads=3, intermediate_size=50, num_labels=1
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    with start_server(folder, tmp_path) as server:
        server.wait_until_ready()
        answer = httpx.post(f"{server.address}/rerank", json={"query": "a", "texts": ["b", "c"]})
    assert sorted(item["index"] for item in answer.json()) == [0, 1]


def test_a_port_in_use_is_said(minilm: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with start_server(minilm, tmp_path, {"server": {"port": port}}) as server:
            assert server.wait_for_exit() == os.EX_CONFIG
    assert (
        f"cannot listen on 127.0.0.1:{port}" in json.loads((tmp_path / "termination").read_text())["message"]
    )


def test_a_port_for_grpc_in_use_is_said_with_its_reason_in_a_log_of_json(
    minilm: Path, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with start_server(minilm, tmp_path, {"server": {"grpc_port": port}}) as server:
            assert server.wait_for_exit() == os.EX_CONFIG
    message = json.loads((tmp_path / "termination").read_text())["message"]
    assert message == f"cannot listen on 127.0.0.1:{port} for gRPC: Address already in use"
    assert all("time" in line for line in server.lines), "other lines are not JSON"


async def test_the_port_answers_before_the_model_is_there(minilm: Path, tmp_path: Path) -> None:
    with start_server(minilm, tmp_path, {"server": {"management_port": None}}) as server:
        line = server.wait_for("listening")
        async with httpx.AsyncClient(base_url=line["address"]) as client:
            alive = await client.get("/livez")
            early = await client.post("/embed", json={"inputs": "a"})
            await asyncio.to_thread(server.wait_until_ready)
            ready = await client.get("/readyz")
        assert alive.status_code == 200
        assert early.status_code in {200, 503}
        if early.status_code == 503:
            assert early.json()["error_type"] == "Unhealthy"
        assert ready.status_code == 200


BREAKS_LATER = """
import onnxruntime, pathlib
run = onnxruntime.InferenceSession.run
def run_until_broken(self, *arguments, **options):
    if pathlib.Path({marker!r}).exists():
        raise RuntimeError("CUDA failure 700: an illegal memory access was encountered")
    return run(self, *arguments, **options)
onnxruntime.InferenceSession.run = run_until_broken
"""


def test_a_broken_engine_ends_the_process_with_the_reason_for_its_pod(minilm: Path, tmp_path: Path) -> None:
    marker = tmp_path / "broken"
    with start_server(minilm, tmp_path, before=BREAKS_LATER.format(marker=str(marker))) as server:
        server.wait_until_ready()
        assert httpx.post(f"{server.address}/embed", json={"inputs": "a"}).status_code == 200
        marker.touch()
        assert httpx.post(f"{server.address}/embed", json={"inputs": "a"}).status_code == 500
        assert server.wait_for_exit() == 1
    termination_message = json.loads((tmp_path / "termination").read_text())
    assert (termination_message["reason"], termination_message["retryable"]) == ("EngineBroken", True)
    assert "CUDA failure 700: an illegal memory access" in termination_message["message"]
