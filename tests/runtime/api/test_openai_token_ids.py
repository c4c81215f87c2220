"""Token ids on `/v1/embeddings`: refused unless the settings allow them, and counted."""

from __future__ import annotations

from typing import Any

import httpx2  # the client's own HTTP library
import openai
import pytest
import tiktoken
from langchain_openai import OpenAIEmbeddings
from pydantic import SecretStr

from tests.support.in_process_server import InProcessServer, serve_in_process

OTHER_ROUTES = [("/embed", {"inputs": [5, 6]}), ("/v1/encode", {"inputs": [[5, 6]]})]
MIXED: list[Any] = [[5, 6], [[5, 6]], ["hello", [5]]]


def counted(server: InProcessServer, outcome: str) -> float | None:
    return server.get_metric("embedserve_openai_token_id_requests_total", {"outcome": outcome})


@pytest.mark.parametrize("ids", MIXED)
@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings"])
async def test_they_are_refused_with_the_clients_setting_by_name_and_counted(path: str, ids: Any) -> None:
    async with serve_in_process() as server:
        answer = await server.client.post(path, json={"input": ids})
        assert (counted(server, "taken"), counted(server, "refused")) == (0, 1)
    assert answer.status_code == 422
    message = answer.json()["error"]["message"]
    assert "`input` has token ids" in message
    assert "check_embedding_ctx_length=False" in message
    assert "server.openai_token_ids" in message


@pytest.mark.parametrize("ids", MIXED)
async def test_the_setting_allows_them_and_they_are_counted(ids: Any) -> None:
    async with serve_in_process(openai_token_ids=True) as server:
        answer = await server.client.post("/v1/embeddings", json={"input": ids})
        assert (counted(server, "taken"), counted(server, "refused")) == (1, 0)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(("path", "body"), OTHER_ROUTES)
async def test_other_routes_take_them_and_texts_are_not_counted(path: str, body: Any) -> None:
    async with serve_in_process() as server:
        assert (await server.client.post(path, json=body)).status_code == 200
        assert (
            await server.client.post("/v1/embeddings", json={"input": ["a", "hello [5]"]})
        ).status_code == 200
        assert (counted(server, "taken"), counted(server, "refused")) == (0, 0)


def bytes_encoding() -> tiktoken.Encoding:
    """A vocabulary of OpenAI's library that needs no download: a token for each byte."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    return tiktoken.Encoding("bytes", pat_str=r"[\s\S]", mergeable_ranks=ranks, special_tokens={})


@pytest.mark.parametrize("checks_length", [True, False])
async def test_langchain_as_it_is_by_default_learns_which_setting_to_change(
    checks_length: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiktoken, "encoding_for_model", lambda _: bytes_encoding())
    async with (
        serve_in_process() as server,
        openai.DefaultAsyncHttpxClient(transport=httpx2.ASGITransport(server.app)) as http,
    ):
        embedder = OpenAIEmbeddings(
            model="text-embedding-3-small",
            openai_api_base="http://test/v1",
            http_async_client=http,
            openai_api_key=SecretStr("unused"),
            check_embedding_ctx_length=checks_length,
            max_retries=0,
        )
        if checks_length:
            with pytest.raises(openai.UnprocessableEntityError, match="check_embedding_ctx_length=False"):
                await embedder.aembed_documents(["hello"])
        else:
            assert len(await embedder.aembed_documents(["hello"])) == 1
