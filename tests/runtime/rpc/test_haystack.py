"""Haystack's embedders over gRPC, which know the server by reflection."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from haystack import Document
from haystack.utils import Secret
from haystack_integrations.components.embedders.huggingface_api import (
    HuggingFaceAPIDocumentEmbedder,
    HuggingFaceAPITextEmbedder,
    HuggingFaceTEISparseDocumentEmbedder,
    HuggingFaceTEISparseTextEmbedder,
)
from pydantic import SecretStr

from embedserve_runtime.api.api_keys import ApiKeys
from embedserve_runtime.api.clients import ClientIdentifier
from tests.runtime.rpc.rpc_kit import served
from tests.support.tiny_models import build_splade_card

KEY = "a-key"
CLIENTS = ClientIdentifier(ApiKeys([SecretStr(KEY)]))
HEADERS = {"authorization": f"Bearer {KEY}"}
TEXTS = ["hello world", "a list of numbers", "a vector", "deep learning", "query"]
DOCUMENTS = [Document(content=text) for text in TEXTS]


async def test_dense_vectors_of_texts_and_documents() -> None:
    async with served(clients=CLIENTS) as server:
        settings: dict[str, Any] = {
            "api_type": "text_embeddings_inference",
            "api_params": {"url": server.server.address},
            "token": Secret.from_token(KEY),
            "use_grpc": True,
        }
        documents = HuggingFaceAPIDocumentEmbedder(**settings, progress_bar=False)
        text = HuggingFaceAPITextEmbedder(**settings)
        embedded = await asyncio.to_thread(documents.run, DOCUMENTS)
        streamed = await documents.run_async(DOCUMENTS)
        single = await asyncio.to_thread(text.run, TEXTS[0])
        body = {"inputs": TEXTS, "normalize": False}
        want = (await server.bench.client.post("/embed", json=body, headers=HEADERS)).json()
        await documents.close_async()
        await asyncio.to_thread(documents.close)
        await asyncio.to_thread(text.close)
    for answer in (embedded, streamed):
        got = [document.embedding for document in answer["documents"]]
        np.testing.assert_allclose(np.array(got), np.array(want), rtol=1e-6)
    np.testing.assert_allclose(single["embedding"], want[0], rtol=1e-6)


async def test_sparse_vectors_of_texts_and_documents() -> None:
    async with served(clients=CLIENTS, card=build_splade_card()) as server:
        settings: dict[str, Any] = {
            "api_base_url": server.server.address,
            "token": Secret.from_token(KEY),
            "use_grpc": True,
        }
        documents = HuggingFaceTEISparseDocumentEmbedder(**settings)
        text = HuggingFaceTEISparseTextEmbedder(**settings)
        embedded = await asyncio.to_thread(documents.run, DOCUMENTS)
        single = await asyncio.to_thread(text.run, TEXTS[0])
        want = (
            await server.bench.client.post("/embed_sparse", json={"inputs": TEXTS}, headers=HEADERS)
        ).json()
        await asyncio.to_thread(documents.close)
        await asyncio.to_thread(text.close)
    got = [document.sparse_embedding for document in embedded["documents"]]
    assert single["sparse_embedding"] == got[0]
    for ours, theirs in zip(got, want, strict=True):
        assert ours is not None
        assert ours.indices == [entry["index"] for entry in theirs]
        assert ours.values == pytest.approx([entry["value"] for entry in theirs], rel=1e-6)
