"""Run by the interpreter of .venv/clients, which has litellm and langchain-huggingface: calls a server, prints JSON.

python outside_clients.py < [{"client", "address", "key", "texts", "query"}, ...]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any


def litellm_openai(ask: Mapping[str, Any]) -> Any:
    import litellm

    answer = litellm.embedding(
        f"openai/{ask.get('model', 'any')}",
        input=ask["texts"],
        api_base=f"{ask['address']}/v1",
        api_key=ask["key"],
        max_retries=0,
    )
    return [item["embedding"] for item in answer.data]


def litellm_rerank(ask: Mapping[str, Any]) -> Any:
    import litellm

    answer = litellm.rerank(
        "huggingface/any",
        query=ask["query"],
        documents=ask["texts"],
        api_base=ask["address"],
        api_key=ask["key"],
    )
    return [[item["index"], item["relevance_score"]] for item in answer.results or ()]


def litellm_cohere_rerank(ask: Mapping[str, Any]) -> Any:
    import litellm

    answer = litellm.rerank(
        "cohere/any",
        query=ask["query"],
        documents=ask["texts"],
        api_base=f"{ask['address']}/v2/rerank",
        api_key=ask["key"],
    )
    return [[item["index"], item["relevance_score"]] for item in answer.results or ()]


def langchain_huggingface(ask: Mapping[str, Any]) -> Any:
    from huggingface_hub import InferenceClient
    from langchain_huggingface import HuggingFaceEndpointEmbeddings

    # It takes no address for a model, so a server of one's own is given as its client.
    embedder = HuggingFaceEndpointEmbeddings(model="any/any", huggingfacehub_api_token=ask["key"])
    embedder.client = InferenceClient(model=ask["address"], token=ask["key"])
    return embedder.embed_documents(ask["texts"])


CLIENTS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    client.__name__: client
    for client in (litellm_openai, litellm_rerank, litellm_cohere_rerank, langchain_huggingface)
}


def main() -> None:
    print(json.dumps([_result(ask) for ask in json.load(sys.stdin)]))


def _result(ask: Mapping[str, Any]) -> Any:
    try:
        return CLIENTS[ask["client"]](ask)
    except Exception as error:  # noqa: BLE001  whatever a client raises is what the test wants to see
        return {"error": type(error).__name__, "message": str(error)}


if __name__ == "__main__":
    main()
