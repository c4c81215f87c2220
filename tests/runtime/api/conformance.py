"""The HTTP API of Text Embeddings Inference 1.9 as one table: what a drop-in has to do, row by row.

    python -m tests.runtime.api.conformance   writes docs/compatibility.md from it and the tables of clients and fields

A row with a `Difference` is one where this server does something else on purpose; the row tests what it does.
Values of vectors are tested in `test_routes`; here it is statuses, shapes and headers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.runtime.api.conformance_checks import (
    Check,
    both,
    empty,
    equals,
    error,
    labelled,
    openai_error,
    openai_list,
    ranked,
    sparse,
    states,
    timed,
    tokens,
    untimed,
    vectors,
)
from tests.runtime.api.fields import fields_page
from tests.runtime.api.verified_clients import clients_page

PAGE = Path(__file__).parents[3] / "docs" / "compatibility.md"


@dataclass(frozen=True)
class Difference:
    tei: str
    ours: str
    why: str


@dataclass(frozen=True)
class Row:
    """what: a sentence that is the test's name. server: one of `SERVERS` in the test."""

    subject: str
    request: str
    body: Any
    want_status: int
    check: Check
    differs: Difference | None = None
    server: str = "plain"
    headers: Mapping[str, str] = field(default_factory=dict)


LONG = "hello " * 50
SIMILAR = {"inputs": {"source_sentence": "hello", "sentences": ["hello", "world"]}}
RERANK = {"query": "hello", "texts": ["hello", "world"]}

_JSON_ERRORS = Difference("text/plain, or an empty body", "TEI's own error JSON", "clients parse one format")
_KEPT_OPEN = Difference(
    "32 inputs a request by default",
    "no limit unless `batching.max_client_batch_size` is set",
    "the server forms the batches; the queue and the body have limits",
)

ROUTES = (
    Row("/embed returns a list of lists for one text too", "/embed", {"inputs": "hello"}, 200, vectors(1)),
    Row("/embed keeps the order of a batch", "/embed", {"inputs": ["hello", "world"]}, 200, vectors(2)),
    Row(
        "/embed_all returns the states of all tokens, with special tokens",
        "/embed_all",
        {"inputs": ["hello", "a vector"]},
        200,
        states(3, 4),
    ),
    Row(
        "/embed_sparse is 424 without SPLADE pooling",
        "/embed_sparse",
        {"inputs": "hello"},
        424,
        error("Backend", "no sparse vectors"),
    ),
    Row(
        "/embed_sparse returns entries by ascending index",
        "/embed_sparse",
        {"inputs": ["hello", "a vector"]},
        200,
        both(sparse(2), timed),
        server="splade",
    ),
    Row(
        "/rerank returns all texts, best first",
        "/rerank",
        RERANK,
        200,
        both(ranked("index", "score"), timed),
        server="reranker",
    ),
    Row(
        "/predict returns all labels of a text, most likely first",
        "/predict",
        {"inputs": "hello"},
        200,
        both(labelled(), timed),
        server="classifier",
    ),
    Row(
        "/predict returns a list for each input of a batch",
        "/predict",
        {"inputs": [["hello"], ["hello", "world"]]},
        200,
        lambda a: [len(item) for item in a.json()] == [3, 3],
        server="classifier",
    ),
    Row(
        "/predict works with a reranker too",
        "/predict",
        {"inputs": ["hello", "world"]},
        200,
        lambda a: [item["label"] for item in a.json()] == ["LABEL_0"],
        server="reranker",
    ),
    Row(
        "/rerank is 424 with a classifier",
        "/rerank",
        RERANK,
        424,
        error("Backend", "model is not a re-ranker model"),
        server="classifier",
    ),
    Row(
        "/embed is 424 with a classifier",
        "/embed",
        {"inputs": "hello"},
        424,
        error("Backend", "no dense vectors"),
        server="classifier",
    ),
    Row("/rerank is 424 with an embedding model", "/rerank", RERANK, 424, error("Backend", "re-ranker")),
    Row(
        "/predict is 424 with an embedding model",
        "/predict",
        {"inputs": "a"},
        424,
        error("Backend", "classifier"),
    ),
    Row("/similarity returns a list of numbers", "/similarity", SIMILAR, 200, lambda a: len(a.json()) == 2),
    Row(
        "/v1/embeddings returns OpenAI's format", "/v1/embeddings", {"input": ["a", "b"]}, 200, openai_list(2)
    ),
    Row("/embeddings is the same route", "/embeddings", {"input": "a"}, 200, openai_list(1)),
    Row(
        "/tokenize returns a list of lists",
        "/tokenize",
        {"inputs": "hello world"},
        200,
        tokens(
            ("[CLS]", True, None, None),
            ("hello", False, 0, 5),
            ("world", False, 6, 11),
            ("[SEP]", True, None, None),
        ),
    ),
    Row("/decode returns a list", "/decode", {"ids": [9, 10]}, 200, equals(["hello world"])),
    Row(
        "/info shows the kind of model",
        "GET /info",
        None,
        200,
        lambda a: (
            a.json()["model_type"] == {"embedding": {"pooling": "mean"}} and a.json()["model_id"] == "tiny"
        ),
    ),
    Row("/health is empty", "GET /health", None, 200, empty),
    Row("/ping is the same as /health", "GET /ping", None, 200, empty),
    Row("GET / is the same as /health", "GET /", None, 200, empty),
    Row("/health is 503 while unhealthy", "GET /health", None, 503, error("Unhealthy"), server="loading"),
    Row(
        "requests are refused while the model is loaded",
        "/embed",
        {"inputs": "hello"},
        503,
        error("Unhealthy", "not ready"),
        Difference(
            "connection refused", "503 with the phase", "probes can tell a loading server from a dead one"
        ),
        server="loading",
    ),
    Row(
        "/metrics is in Prometheus's text format",
        "GET /metrics",
        None,
        200,
        lambda a: (
            'te_request_count{method="single"} 0.0' in a.text and "te_request_duration_bucket" in a.text
        ),
        Difference(
            "empty until the first request",
            "all series from the first scrape",
            "alerts on absent series work",
        ),
    ),
    Row(
        "/docs is a page", "GET /docs", None, 200, lambda a: a.headers["content-type"].startswith("text/html")
    ),
    Row(
        "the OpenAPI document",
        "GET /api-doc/openapi.json",
        None,
        200,
        lambda a: "/embed" in a.json()["paths"],
    ),
    Row(
        "/info of a reranker",
        "GET /info",
        None,
        200,
        lambda a: (
            a.json()["model_type"] == {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}}
        ),
        server="reranker",
    ),
    Row(
        "/info of a classifier",
        "GET /info",
        None,
        200,
        lambda a: a.json()["model_type"]["classifier"]["label2id"] == {"bad": 0, "fine": 1, "good": 2},
        server="classifier",
    ),
    Row(
        "/info of a sparse model",
        "GET /info",
        None,
        200,
        lambda a: a.json()["model_type"] == {"embedding": {"pooling": "splade"}},
        server="splade",
    ),
    Row("POST / predicts with a classifier", "/", {"inputs": "hello"}, 200, labelled(), server="classifier"),
    Row(
        "POST / ranks with a reranker",
        "/",
        RERANK,
        200,
        both(ranked("index", "score"), timed),
        server="reranker",
    ),
    Row(
        "POST / returns sparse vectors of a sparse model",
        "/",
        {"inputs": "hello"},
        200,
        sparse(1),
        server="splade",
    ),
    Row(
        "/vertex ranks and predicts, instance by instance",
        "/vertex",
        {"instances": [RERANK, {"inputs": ["hello", "world"]}]},
        200,
        lambda a: [len(item) for item in a.json()["predictions"]] == [2, 1],
        server="reranker",
    ),
    Row("POST / embeds", "/", {"inputs": "hello"}, 200, both(vectors(1), timed)),
    Row("/invocations embeds", "/invocations", {"inputs": ["a", "b"]}, 200, vectors(2)),
    Row(
        "POST / computes similarities",
        "/",
        SIMILAR,
        200,
        lambda a: len(a.json()) == 2,
        Difference(
            "similarity only with `TASK=sentence-similarity` in the environment",
            "decided by the shape of `inputs`",
            "one server can answer both kinds of client",
        ),
    ),
    Row(
        "/vertex answers instance by instance",
        "/vertex",
        {"instances": [{"inputs": "a"}, {"inputs": ["a", "b"], "dimensions": 2}]},
        200,
        lambda a: [len(part) for part in a.json()["predictions"]] == [1, 2],
    ),
    Row("/vertex accepts instances for rerankers", "/vertex", {"instances": [RERANK]}, 424, error("Backend")),
    Row(
        "/vertex names an invalid instance",
        "/vertex",
        {"instances": [{"inputs": "a"}, 5]},
        422,
        error("Validation", "1"),
    ),
)

FIELDS = (
    Row(
        "/rerank return_text",
        "/rerank",
        RERANK | {"return_text": True},
        200,
        both(ranked("index", "score", "text"), lambda a: {i["text"] for i in a.json()} == {"hello", "world"}),
        server="reranker",
    ),
    Row(
        "/rerank without raw_scores returns sigmoids",
        "/rerank",
        RERANK,
        200,
        lambda a: all(0 < item["score"] < 1 for item in a.json()),
        server="reranker",
    ),
    Row(
        "/predict with raw_scores returns logits",
        "/predict",
        {"inputs": "hello", "raw_scores": True},
        200,
        lambda a: abs(sum(item["score"] for item in a.json()) - 1) > 1e-3,
        server="classifier",
    ),
    Row("a flat array of ids is one input", "/embed", {"inputs": [5, 6, 7]}, 200, vectors(1)),
    Row("texts and arrays of ids may be mixed", "/embed", {"inputs": ["a", [5, 6]]}, 200, vectors(2)),
    Row("unknown fields are ignored", "/embed", {"inputs": "a", "options": {}}, 200, vectors(1)),
    Row(
        "truncate null uses the server's setting",
        "/embed",
        {"inputs": LONG, "truncate": None},
        200,
        vectors(1),
    ),
    Row(
        "truncate false refuses a long text",
        "/embed",
        {"inputs": LONG, "truncate": False},
        422,
        error("Validation", "tokens"),
    ),
    Row(
        "truncation_direction left",
        "/embed",
        {"inputs": LONG, "truncation_direction": "left"},
        200,
        vectors(1),
    ),
    Row(
        "truncation_direction unknown",
        "/embed",
        {"inputs": "a", "truncation_direction": "Up"},
        422,
        error("Validation"),
    ),
    Row("prompt_name by name", "/embed", {"inputs": "a", "prompt_name": "query"}, 200, vectors(1)),
    Row(
        "an unknown prompt is refused with a list of the known ones",
        "/embed",
        {"inputs": "a", "prompt_name": "nope"},
        422,
        error("Validation", 'Available prompts: ["query"]'),
    ),
    Row("dimensions shorten the vectors", "/embed", {"inputs": "a", "dimensions": 4}, 200, vectors(1, 4)),
    Row("dimensions 0", "/embed", {"inputs": "a", "dimensions": 0}, 422, error("Validation")),
    Row(
        "dimensions beyond the model's", "/embed", {"inputs": "a", "dimensions": 9}, 422, error("Validation")
    ),
    Row(
        "null for an optional field",
        "/embed",
        {"inputs": "a", "normalize": None, "truncation_direction": None},
        200,
        vectors(1),
        Difference("422 for most", "the same as leaving it out", "clients send null for unset fields"),
    ),
    Row("/embed_all accepts a prompt", "/embed_all", {"inputs": "a", "prompt_name": "query"}, 200, states(5)),
    Row("/rerank without texts", "/rerank", {"query": "a", "texts": []}, 400, error("Empty")),
    Row("/rerank without a query", "/rerank", {"texts": ["a"]}, 422, error("Validation")),
    Row("/predict accepts a pair", "/predict", {"inputs": ["a", "b"]}, 424, error("Backend")),
    Row("/predict accepts a batch", "/predict", {"inputs": [["a"], ["a", "b"]]}, 424, error("Backend")),
    Row("/predict refuses three texts", "/predict", {"inputs": ["a", "b", "c"]}, 422, error("Validation")),
    Row("/predict refuses an empty list", "/predict", {"inputs": []}, 422, error("Validation")),
    Row(
        "/similarity accepts parameters",
        "/similarity",
        {**SIMILAR, "parameters": {"prompt_name": "query", "truncate": True}},
        200,
        timed,
    ),
    Row("/similarity parameters null", "/similarity", {**SIMILAR, "parameters": None}, 200, timed),
    Row(
        "/similarity without sentences",
        "/similarity",
        {"inputs": {"source_sentence": "a", "sentences": []}},
        400,
        error("Empty"),
    ),
    Row(
        "OpenAI's route and token ids",
        "/v1/embeddings",
        {"input": [[5], [6, 7]]},
        422,
        openai_error("Validation"),
        Difference(
            "accepted",
            "refused unless `server.openai_token_ids` is set",
            "clients send ids of OpenAI's tokenizers, which are other words in the model's vocabulary",
        ),
    ),
    Row(
        "OpenAI base64 is little-endian float32",
        "/v1/embeddings",
        {"input": "a", "encoding_format": "base64"},
        200,
        lambda a: len(a.json()["data"][0]["embedding"]) == 44,
    ),
    Row(
        "OpenAI model and user are ignored",
        "/v1/embeddings",
        {"input": "a", "model": "x", "user": "y"},
        200,
        openai_list(1),
    ),
    Row(
        "OpenAI encoding_format unknown",
        "/v1/embeddings",
        {"input": "a", "encoding_format": "hex"},
        422,
        openai_error("Validation"),
    ),
    Row(
        "/tokenize without special tokens",
        "/tokenize",
        {"inputs": ["hello"], "add_special_tokens": False},
        200,
        tokens(("hello", False, 0, 5)),
    ),
    Row(
        "/tokenize offsets are UTF-8 bytes into prompt and text",
        "/tokenize",
        {"inputs": "é hello", "prompt_name": "query", "add_special_tokens": False},
        200,
        tokens(("query", False, 0, 5), (":", False, 5, 6), ("é", False, 7, 9), ("hello", False, 10, 15)),
    ),
    Row("/decode accepts a batch", "/decode", {"ids": [[9], [10]]}, 200, equals(["hello", "world"])),
    Row("/decode skips special tokens", "/decode", {"ids": [2, 9, 3]}, 200, equals(["hello"])),
    Row(
        "/decode keeps special tokens",
        "/decode",
        {"ids": [2, 9], "skip_special_tokens": False},
        200,
        equals(["[CLS] hello"]),
    ),
)

SEMANTICS = (
    Row(
        "a default prompt does not affect /rerank",
        "/rerank",
        RERANK,
        200,
        ranked("index", "score"),
        Difference(
            "422 if the model has a default prompt",
            "prompts apply to embeddings; pairs get none",
            "otherwise a reranker with prompts could not rank",
        ),
        server="prompted reranker",
    ),
    Row(
        "texts with equal scores keep their order",
        "/rerank",
        {"query": "hello", "texts": ["world", "world", "world"]},
        200,
        lambda a: [item["index"] for item in a.json()] == [0, 1, 2],
        Difference(
            "the later one first", "the earlier one first", "the order of the request is the better guess"
        ),
        server="reranker",
    ),
    Row(
        "a multi-label classifier returns sigmoids",
        "/predict",
        {"inputs": "hello"},
        200,
        lambda a: abs(sum(item["score"] for item in a.json()) - 1) > 1e-3,
        Difference(
            "softmax if there is more than one label",
            "decided by `problem_type` and the cross-encoder's activation",
            "labels that do not exclude each other need independent scores",
        ),
        server="multi-label classifier",
    ),
    Row(
        "token ids are used as they are",
        "/embed",
        {"inputs": [[9]]},
        200,
        lambda a: a.headers["x-compute-tokens"] == "1",
        Difference("decoded to text and encoded again", "used as they are", "decoding loses information"),
    ),
    Row(
        "a prompt before token ids",
        "/embed",
        {"inputs": [[9]], "prompt_name": "query"},
        422,
        error("Validation", "prompt"),
        Difference("decoded, joined with the prompt, encoded", "refused", "decoding loses information"),
    ),
    Row(
        "left truncation with a prompt",
        "/embed",
        {"inputs": LONG, "truncation_direction": "Left", "prompt_name": "query"},
        200,
        vectors(1),
        Difference(
            "cuts the prompt off first",
            "the prompt stays",
            "a vector without its prompt cannot be compared with the others",
        ),
    ),
    Row(
        "ids outside the vocabulary",
        "/decode",
        {"ids": [9, 4000]},
        422,
        error("Validation", "vocabulary"),
        Difference("left out of the text", "refused by name", "missing tokens would go unnoticed"),
    ),
    Row(
        "a very long text without truncation",
        "/tokenize",
        {"inputs": "a" * 9_000},
        422,
        error("Validation", "characters"),
    ),
    Row(
        "values that are not finite",
        "/embed",
        {"inputs": "hello"},
        500,
        error("Backend", "finite"),
        Difference("`null` with status 200", "500", "`null` makes clients fail later, elsewhere"),
        server="not finite",
    ),
    Row(
        "a zero vector, normalized",
        "/embed",
        {"inputs": "hello"},
        200,
        equals([[0.0] * 8]),
        Difference("`null` for every value", "stays zero", "`null` makes clients fail later, elsewhere"),
        server="zero",
    ),
    Row(
        "the similarity of a zero vector",
        "/similarity",
        SIMILAR,
        200,
        equals([0.0, 0.0]),
        Difference("undefined", "0", "a vector without direction is similar to none"),
        server="zero",
    ),
)

LIMITS = (
    Row(
        "a batch beyond the limit",
        "/embed",
        {"inputs": ["a", "b", "c"]},
        422,
        error("Validation", "batch size 3 > maximum allowed batch size 2"),
        server="small",
    ),
    Row(
        "a /tokenize batch beyond the limit",
        "/tokenize",
        {"inputs": ["a"] * 3},
        422,
        error("Validation", "batch size"),
        server="small",
    ),
    Row(
        "a /decode batch beyond the limit",
        "/decode",
        {"ids": [[5]] * 3},
        422,
        error("Validation", "batch size"),
        server="small",
    ),
    Row(
        "a /predict batch beyond the limit",
        "/predict",
        {"inputs": [["a"]] * 3},
        422,
        error("Validation"),
        server="small",
    ),
    Row(
        "an OpenAI batch beyond the limit",
        "/v1/embeddings",
        {"input": ["a"] * 3},
        422,
        openai_error("Validation"),
        server="small",
    ),
    Row(
        "the source sentence of a similarity counts towards the limit",
        "/similarity",
        SIMILAR,
        422,
        error("Validation"),
        server="small",
    ),
    Row("40 inputs", "/embed", {"inputs": ["a"] * 40}, 200, vectors(40), _KEPT_OPEN),
    Row(
        "no room for the request",
        "/embed",
        {"inputs": "a"},
        429,
        both(error("Overloaded"), lambda a: int(a.headers["retry-after"]) >= 1),
        Difference("no `Retry-After`", "`Retry-After` from the measured rate", "clients know when to retry"),
        server="full",
    ),
)

ERRORS = (
    Row("an empty batch", "/embed", {"inputs": []}, 400, error("Empty")),
    Row("an empty text", "/embed", {"inputs": ""}, 400, error("Empty")),
    Row("an empty text fails the whole batch", "/embed", {"inputs": ["a", ""]}, 400, error("Empty", "1")),
    Row("an empty text to tokenize", "/tokenize", {"inputs": ""}, 400, error("Empty")),
    Row("no ids to decode", "/decode", {"ids": []}, 400, error("Empty")),
    Row("OpenAI with an empty text", "/v1/embeddings", {"input": ""}, 400, openai_error("Empty")),
    Row(
        "an empty batch is reported before a wrong kind of model",
        "/embed_sparse",
        {"inputs": []},
        400,
        error("Empty"),
    ),
    Row(
        "engine failures",
        "/embed",
        {"inputs": "hello"},
        500,
        error("Backend", "out of memory"),
        Difference("424", "500", "clients retry 5xx; 424 means the wrong kind of model"),
        server="broken",
    ),
    Row(
        "OpenAI errors",
        "/v1/embeddings",
        {"input": "a", "dimensions": 9},
        422,
        openai_error("Validation"),
        Difference(
            "flat", "flat keys, and OpenAI's nested `error` beside them", "OpenAI's client reads `error`"
        ),
    ),
    Row("malformed JSON", "/embed", b"{", 400, error("Validation", "JSON"), _JSON_ERRORS),
    Row("JSON of the wrong shape", "/embed", {"inputs": 5}, 422, error("Validation"), _JSON_ERRORS),
    Row(
        "a body above the limit",
        "/embed",
        b'"' + b"a" * 5_000,
        413,
        error("Validation"),
        _JSON_ERRORS,
        "small",
    ),
    Row(
        "another content type",
        "/embed",
        b"x",
        415,
        error("Validation"),
        _JSON_ERRORS,
        headers={"content-type": "text/plain"},
    ),
    Row(
        "no content type",
        "/embed",
        b'{"inputs":"a"}',
        200,
        vectors(1),
        Difference("415", "read as JSON", "convenient with curl"),
    ),
    Row("an unknown path", "GET /nope", None, 404, error("Validation"), _JSON_ERRORS),
    Row("a wrong method", "GET /embed", None, 405, error("Validation"), _JSON_ERRORS),
    Row("no key", "/embed", {"inputs": "a"}, 401, empty, server="keys"),
    Row(
        "a wrong key",
        "/embed",
        {"inputs": "a"},
        401,
        empty,
        server="keys",
        headers={"authorization": "Bearer no"},
    ),
    Row(
        "a right key",
        "/embed",
        {"inputs": "a"},
        200,
        vectors(1),
        server="keys",
        headers={"authorization": "Bearer two"},
    ),
    Row("/info requires the key", "GET /info", None, 401, empty, server="keys"),
    Row("/health requires no key", "GET /health", None, 200, empty, server="keys"),
    Row("/ping requires no key", "GET /ping", None, 200, empty, server="keys"),
    Row(
        "/metrics requires no key",
        "GET /metrics",
        None,
        200,
        lambda a: "te_queue_size" in a.text,
        server="keys",
    ),
    Row("/docs requires no key", "GET /docs", None, 200, lambda a: "Swagger" in a.text, server="keys"),
    Row(
        "OpenAI's clients without a key",
        "/v1/embeddings",
        {"input": "a"},
        401,
        lambda a: a.json()["error"]["code"] == "Unauthorized" and a.headers["www-authenticate"] == "Bearer",
        Difference("an empty body", "OpenAI's error JSON", "the client shows the message"),
        server="keys",
    ),
)

HEADERS = (
    *(
        Row(f"{path} returns counts and times", path, body, 200, timed)
        for path, body in (
            ("/embed", {"inputs": "a"}),
            ("/embed_all", {"inputs": "a"}),
            ("/similarity", SIMILAR),
            ("/v1/embeddings", {"input": "a"}),
        )
    ),
    *(
        Row(f"{request} returns no counts or times", request, body, 200, untimed)
        for request, body in (
            ("/tokenize", {"inputs": "a"}),
            ("/decode", {"ids": [9]}),
            ("GET /info", None),
            ("GET /health", None),
            ("/vertex", {"instances": [{"inputs": "a"}]}),
        )
    ),
    Row(
        "x-compute-characters counts code points",
        "/embed",
        {"inputs": "éé"},
        200,
        lambda a: a.headers["x-compute-characters"] == "2",
    ),
    Row(
        "x-compute-type",
        "/embed",
        {"inputs": "a"},
        200,
        lambda a: "x-compute-type" not in a.headers,
        Difference("`gpu+optimized`, also on CPUs", "not sent", "it carries no information"),
    ),
    Row(
        "a page of another origin",
        "/embed",
        {"inputs": "a"},
        200,
        lambda a: "access-control-allow-origin" not in a.headers,
        Difference(
            "any origin may call",
            "no CORS headers",
            "otherwise any web page could use a server in a private network",
        ),
        headers={"origin": "http://elsewhere.example"},
    ),
)

SECTIONS = {
    "Routes": ROUTES,
    "Fields": FIELDS,
    "Semantics": SEMANTICS,
    "Batches and load": LIMITS,
    "Errors": ERRORS,
    "Headers": HEADERS,
}


def page() -> str:
    """docs/compatibility.md."""
    count = sum(len(rows) for rows in SECTIONS.values())
    differing = sum(row.differs is not None for rows in SECTIONS.values() for row in rows)
    lines = [
        "# Compatibility with Text Embeddings Inference",
        "",
        "<!-- Written by `python -m tests.runtime.api.conformance`; the rows are in that module. -->",
        "",
        f"How the HTTP API compares with that of Text Embeddings Inference (TEI) 1.9, in {count} requests that the"
        " tests send to the server.",
        f"{count - differing} give the same result. The others differ on purpose; the tables say how and why.",
    ]
    for section, rows in SECTIONS.items():
        lines += ["", f"## {section}", "", "| about | request | TEI | here | why |", "|---|---|---|---|---|"]
        lines += [
            f"| {row.subject} | {_shown(row)} | {row.differs.tei} | {row.differs.ours} | {row.differs.why} |"
            for row in rows
            if row.differs
        ]
        if not any(row.differs for row in rows):
            lines = [*lines[:-2], "No differences."]
        same = [f"`{row.request}`: {row.subject} ({row.want_status})" for row in rows if not row.differs]
        lines += ["", f"No difference ({len(same)}): " + "; ".join(same) + "."]
    return "\n".join([*lines, "", *clients_page(), "", *fields_page()]) + "\n"


def _shown(row: Row) -> str:
    method = "" if " " in row.request else "POST "
    if row.body is None or isinstance(row.body, bytes):
        return f"`{method}{row.request}`"
    text = json.dumps(row.body, ensure_ascii=False)
    return f"`{method}{row.request}` `{text if len(text) <= 60 else text[:57] + '…'}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
