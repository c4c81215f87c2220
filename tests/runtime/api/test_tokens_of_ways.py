"""Tokens and texts of a model whose queries have a tokenizer of their own, in which two tokens have exchanged their
ids."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from embedserve_runtime.runners.base import Runner
from tests.runtime.heads.head_runner import runner_of
from tests.runtime.model.test_card import edit
from tests.runtime.pipelines.test_dense_routes import CONFIG, OWN, PROMPTS, Bare
from tests.runtime.pipelines.test_dense_routes import saved as saved_pipeline
from tests.runtime.rpc.rpc_kit import served
from tests.support.in_process_server import InProcessServer, serve_in_process

TEXT = "the words of a text"
ASKED: dict[str, tuple[dict[str, Any], str, str]] = {
    "a query by its prompt": ({"prompt_name": "query"}, "query", "ask for: "),
    "a document by its prompt": ({"prompt_name": "document"}, "document", "a passage: "),
    "a query by its type": ({"input_type": "query"}, "query", "ask for: "),
    "a document by its type": ({"input_type": "document"}, "document", "a passage: "),
    "what the model takes it for": ({}, "document", ""),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("ways")
    saved_pipeline(home / "model", *OWN["two encoders with tokenizers of their own"](Bare(home)), **PROMPTS)
    path = home / "model" / "query_0_Transformer" / "tokenizer.json"
    content = json.loads(path.read_text())
    words = content["model"]["vocab"]
    words["the"], words["of"] = words["of"], words["the"]
    path.write_text(json.dumps(content))
    return home / "model"


@pytest.fixture(scope="module")
def runner(folder: Path) -> Runner:
    return runner_of(folder, "torch")


@pytest.fixture
async def server(runner: Runner) -> AsyncIterator[InProcessServer]:
    async with serve_in_process(model=runner) as in_process:
        yield in_process


def ids_by(folder: Path, encoder: str, text: str) -> list[int]:
    tokenizer = Tokenizer.from_file(str(folder / f"{encoder}_0_Transformer" / "tokenizer.json"))
    tokenizer.no_padding()
    ids: list[int] = tokenizer.encode(text).ids
    return ids


@pytest.mark.parametrize(("fields", "encoder", "prompt"), ASKED.values(), ids=ASKED)
async def test_tokenize_and_encode_list_the_tokens_of_the_way_that_is_asked_for(
    server: InProcessServer, folder: Path, fields: dict[str, Any], encoder: str, prompt: str
) -> None:
    want = ids_by(folder, encoder, prompt + TEXT)
    assert ids_by(folder, "query", prompt + TEXT) != ids_by(folder, "document", prompt + TEXT)
    listed = (await server.client.post("/tokenize", json={"inputs": TEXT} | fields)).json()
    assert [token["id"] for token in listed[0]] == want
    body = {"inputs": [TEXT], "outputs": ["tokens"]} | fields
    encoded = (await server.client.post("/v1/encode", json=body)).json()
    assert [token["id"] for token in encoded["tokens"][0]] == want


@pytest.mark.parametrize("encoder", ["query", "document"])
async def test_decode_reads_ids_by_the_tokenizer_of_what_they_are(
    server: InProcessServer, folder: Path, encoder: str
) -> None:
    body = {"ids": ids_by(folder, encoder, TEXT), "input_type": encoder}
    assert (await server.client.post("/decode", json=body)).json() == [TEXT]


async def test_grpc_tokenizes_by_the_way_of_the_prompt(runner: Runner, folder: Path) -> None:
    async with served(model=runner) as server:
        answer = await server.client.ask(
            "tei.v1.Tokenize/Tokenize", inputs=TEXT, add_special_tokens=True, prompt_name="query"
        )
    assert [token.id for token in answer.tokens] == ids_by(folder, "query", "ask for: " + TEXT)


async def test_a_model_that_takes_inputs_for_neither_wants_to_be_told(folder: Path) -> None:
    edit(folder / CONFIG, parameters={"default_route": None, "allow_empty_key": False})
    async with serve_in_process(model=runner_of(folder, "torch")) as server:
        for path, body in (("/tokenize", {"inputs": TEXT}), ("/decode", {"ids": [5]})):
            refused = await server.client.post(path, json=body)
            assert (refused.status_code, "takes no input for either" in refused.text) == (422, True)
