"""No tests: the clients that the tests show against a running server, for docs/compatibility.md."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

REQUIREMENTS = Path(__file__).parents[3] / "requirements"


@dataclass(frozen=True)
class VerifiedClient:
    """version: the package of `requirements/` whose pinned version is meant, or the version itself.

    role: how a user of the client says whether its texts are queries or documents.
    """

    name: str
    version: str
    routes: str
    role: str


BY_NAME = "the model's name: `docs:query`"
BY_FIELD = '`extra_body={"input_type": "query"}`'
NONE = "not possible"
CLIENTS = (
    VerifiedClient("openai (Python)", "openai", "`/v1/embeddings`, `/v1/models`", BY_FIELD),
    VerifiedClient(
        "openai (Node)¹", "6.49.0", "`/v1/embeddings`", "`input_type` beside `input`, in the same object"
    ),
    VerifiedClient("langchain-openai²", "langchain-openai", "`/v1/embeddings`", BY_NAME),
    VerifiedClient("langchain-huggingface", "langchain-huggingface", "`/`", NONE),
    VerifiedClient(
        "llama-index, embeddings",
        "llama-index-embeddings-text-embeddings-inference",
        "`/embed`",
        "`query_instruction` and `text_instruction`, as text",
    ),
    VerifiedClient("llama-index, reranking", "llama-index-postprocessor-tei-rerank", "`/rerank`", ""),
    VerifiedClient("Haystack, OpenAI's embedders", "haystack-ai", "`/v1/embeddings`", BY_NAME),
    VerifiedClient(
        "Haystack, Hugging Face's embedders and ranker",
        "huggingface-api-haystack",
        "gRPC, `/rerank`",
        "`prefix`, as text",
    ),
    VerifiedClient("litellm, SDK", "litellm", "`/v1/embeddings`, `/rerank`, `/v2/rerank`", BY_NAME),
    VerifiedClient(
        "litellm, proxy in front (`openai/docs`, `cohere/ranker`)¹",
        "litellm",
        "`/v1/embeddings`, `/v2/rerank`",
        "`input_type` passes through; or a model of the proxy for each (`openai/docs:query`)",
    ),
    VerifiedClient("cohere", "cohere", "`/v2/embed`, `/v1/rerank`, `/v2/rerank`", "`input_type`"),
    VerifiedClient("huggingface_hub", "huggingface-hub", "`/`, `/similarity`", '`prompt_name="query"`'),
    VerifiedClient("Chroma's embedding function", "chromadb-client", "`/embed`", NONE),
    VerifiedClient(
        "Open WebUI¹",
        "main branch",
        "`/v1/embeddings`, `/v1/rerank`",
        "`RAG_EMBEDDING_PREFIX_FIELD_NAME=input_type`, `RAG_EMBEDDING_QUERY_PREFIX=query`,"
        " `RAG_EMBEDDING_CONTENT_PREFIX=document`",
    ),
    VerifiedClient("java.net.http (offers `Upgrade: h2c`)¹", "JDK 17", "all", "`input_type` in the body"),
    VerifiedClient("Spring AI, over java.net.http¹", "1.x", "`/v1/embeddings`", BY_NAME),
)


def read_pinned_versions() -> dict[str, str]:
    """Return the version of each package that the tests install."""
    return {
        name: version
        # What both have is called from the environment of dev.txt.
        for file in ("clients.txt", "dev.txt")
        for name, version in re.findall(
            r"^([a-z0-9-]+)==([^\s;]+)", (REQUIREMENTS / file).read_text(encoding="utf-8"), re.MULTILINE
        )
    }


def clients_page() -> list[str]:
    """The section of docs/compatibility.md about clients."""
    pinned = read_pinned_versions()
    lines = [
        "## Verified clients",
        "",
        "The tests run each of these against a server (`tests/contract`, `tests/runtime/rpc`). The vectors match those",
        "of `/embed` within 1e-6, and the ranking is the model's. The last column says how a user of the client marks",
        "texts as queries or documents.",
        "",
        "| client | version | routes | query or document |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {client.name} | {pinned.get(client.version, client.version)} | {client.routes} | {client.role} |"
        for client in CLIENTS
    ]
    return [
        *lines,
        "",
        "¹ The tests do not install this client; they send its requests byte by byte.",
        "² Set `check_embedding_ctx_length=False`; otherwise it sends ids of OpenAI's vocabulary, which are refused.",
    ]
