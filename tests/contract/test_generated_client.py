"""A client that is generated from the OpenAPI document asks a live server, and reads what it answers."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import numpy as np
import pytest

from tests.support.models import minilm_folder
from tests.support.server_process import start_server

pytestmark = pytest.mark.thorough

# "Left" and "left" are two words of TEI's, and would be one name in an enumeration.
CONFIG = {"literal_enums": True, "post_hooks": []}
TEXTS = ["What is a vector?", "A list of numbers."]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with start_server(minilm_folder(), tmp_path_factory.mktemp("server")) as server:
        server.wait_until_ready()
        yield server.address
        server.process.terminate()
        server.wait_for_exit()


@pytest.fixture(scope="module")
def generated(address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    folder = tmp_path_factory.mktemp("client")
    document, config = folder / "openapi.json", folder / "config.yaml"
    document.write_bytes(httpx.get(f"{address}/openapi.json").content)
    config.write_text(json.dumps(CONFIG))
    tool = Path(sys.executable).parent / "openapi-python-client"
    options: list[str | Path] = [
        "--path",
        document,
        "--config",
        config,
        "--output-path",
        folder / "generated_client",
        "--meta",
        "none",
    ]
    ran = subprocess.run([tool, "generate", *options], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "WARNING" not in ran.stdout + ran.stderr
    sys.path.insert(0, str(folder))
    yield importlib.import_module("generated_client")
    sys.path.remove(str(folder))


def call(generated: ModuleType, address: str, function: str, model: str, body: dict[str, Any]) -> Any:
    """What a function of the client gives for a body."""
    api = importlib.import_module(f"{generated.__name__}.api.{function}")
    models = importlib.import_module(f"{generated.__name__}.models")
    with generated.Client(base_url=address, raise_on_unexpected_status=True) as client:
        return api.sync(client=client, body=getattr(models, model).from_dict(body))


def test_vectors_of_two_dialects_are_those_of_the_server(generated: ModuleType, address: str) -> None:
    want = httpx.post(f"{address}/embed", json={"inputs": TEXTS}).json()
    tei = call(generated, address, "tei.embed", "EmbedRequest", {"inputs": TEXTS})
    openai = call(
        generated, address, "open_ai.v1_embeddings", "EmbeddingRequest", {"input": TEXTS, "model": "any"}
    )
    assert tei == want
    np.testing.assert_array_equal([item.embedding for item in openai.data], want)
    assert openai.usage.total_tokens > len(TEXTS)


def test_an_error_is_read_in_the_shape_of_its_dialect(generated: ModuleType, address: str) -> None:
    tei = call(generated, address, "tei.embed", "EmbedRequest", {"inputs": []})
    assert (tei.error_type, type(tei).__name__) == ("Empty", "ErrorResponse")
    openai = call(generated, address, "open_ai.v1_embeddings", "EmbeddingRequest", {"input": []})
    assert openai.error.code == "EmptyInput"
