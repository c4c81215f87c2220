"""Asymmetric dense models against sentence-transformers: queries and documents by modules of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Module, Normalize, Router, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding
from tokenizers import Tokenizer
from transformers import BertModel

from embedserve_runtime.commands.cli import main
from embedserve_runtime.errors import ConfigError, EmbedserveError, ModelInvalid, UnsupportedArchitecture
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.loading.assembly import build_runners
from embedserve_runtime.model.tensors import ModelTensors
from embedserve_runtime.runners.base import RoutedRunner, Runner
from tests.runtime.engines.engines import ENGINES
from tests.runtime.heads.head_runner import card_of, dense_of, greatest, runner_of
from tests.runtime.model.test_card import edit
from tests.runtime.pipelines.folders import TEXTS, bert, finished, tokens_of
from tests.support.tolerances import FP32_MAX_ABS_DIFF

SIZE, SMALL = 24, 16
PROMPTS = {"prompts": {"query": "ask for: ", "document": "a passage: "}}
CONFIG = "router_config.json"

Chain = Callable[["Bare"], list[Module]]


class Bare:
    """Two encoders without modules, of different sizes and tokenizers, and a table of token vectors."""

    def __init__(self, folder: Path) -> None:
        self.large, self.small = folder / "large", folder / "small"
        bert(self.large, BertModel)
        bert(self.small, BertModel, hidden_size=SMALL, num_attention_heads=2, max_position_embeddings=40)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            text = (self.small / name).read_text()
            (self.small / name).write_text(re.sub(r'("(do_lower_case|lowercase)": ?)true', r"\1false", text))

    def encoder(self) -> Transformer:
        return Transformer(str(self.large))

    def small_encoder(self) -> Transformer:
        return Transformer(str(self.small))

    def table(self, size: int = SIZE) -> StaticEmbedding:
        tokenizer = Tokenizer.from_file(str(self.large / "tokenizer.json"))
        tokenizer.no_truncation()
        return StaticEmbedding(tokenizer, embedding_dim=size)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Bare:
    return Bare(tmp_path_factory.mktemp("bare"))


def saved(folder: Path, *modules: Module, **settings: Any) -> SentenceTransformer:
    """Saved and loaded again, so that both sides read the same files."""
    SentenceTransformer(modules=modules, device="cpu", **settings).save_pretrained(
        str(folder), create_model_card=False
    )
    return SentenceTransformer(str(folder), device="cpu")


def pooling(size: int = SIZE, *modes: Any, **settings: Any) -> Pooling:
    return Pooling(size, pooling_mode=modes or "mean", **settings)


def dense(inner: int, out: int, activation: torch.nn.Module | None = None, **settings: Any) -> Dense:
    return Dense(inner, out, activation_function=activation, **settings)


def one_encoder_in_both_routes(bare: Bare) -> list[Module]:
    encoder = bare.encoder()
    routes = [
        [encoder, pooling(SIZE, "cls", include_prompt=False)],
        [encoder, pooling(SIZE, "lasttoken", "max"), dense(2 * SIZE, SIZE)],
    ]
    return [Router.for_query_document(*routes), dense(SIZE, 9, torch.nn.Tanh()), Normalize()]


SHARED: dict[str, Chain] = {
    "a dense module each, normalized behind": lambda bare: [
        bare.encoder(),
        pooling(),
        Router.for_query_document([dense(SIZE, 10, torch.nn.Tanh())], [dense(SIZE, 10)]),
        Normalize(),
    ],
    "two modules beside none": lambda bare: [
        bare.encoder(),
        pooling(SIZE, "cls"),
        Router.for_query_document([dense(SIZE, SIZE, torch.nn.GELU(), use_residual=True), Normalize()], []),
    ],
    "poolings in the routes": one_encoder_in_both_routes,
}
OWN: dict[str, Chain] = {
    "a table beside an encoder": lambda bare: [
        Router.for_query_document([bare.table()], [bare.encoder(), pooling()]),
        Normalize(),
    ],
    "a table with modules of its own, by mappings": lambda bare: [
        Router(
            {
                "fast": [bare.table(7), dense(7, SIZE, torch.nn.Tanh()), Normalize()],
                "slow": [bare.encoder(), pooling(SIZE, "weightedmean")],
            },
            route_mappings={("query", "text"): "fast", (None, None): "slow", (None, "image"): "fast"},
        )
    ],
    "two encoders with tokenizers of their own": lambda bare: [
        Router.for_query_document(
            [bare.small_encoder(), pooling(SMALL, "max"), dense(SMALL, SIZE)],
            [bare.encoder(), pooling(include_prompt=False)],
        ),
        dense(SIZE, 11, torch.nn.Tanh()),
    ],
}


def both(runner: Runner, *, prompts: bool = False) -> tuple[FloatArray, FloatArray]:
    """Vectors of the texts as queries and as documents, from one batch in which they take turns."""
    card = runner.card
    assert card.query is not None
    names = ("query", "document") if prompts else (None, None)
    queries = tokens_of(card, TEXTS, names[0], query=True)
    documents = tokens_of(card, TEXTS, names[1])
    rows = dense_of(runner, [sequence for pair in zip(queries, documents, strict=True) for sequence in pair])
    assert greatest(dense_of(runner, queries) - rows[::2]) <= 1e-5
    return finished(card.query.card, rows[::2]), finished(card, rows[1::2])


@pytest.mark.parametrize("chain", [*SHARED.values(), *OWN.values()], ids=[*SHARED, *OWN])
def test_queries_and_documents_of_one_batch_equal_sentence_transformers_on_every_engine(
    bare: Bare, tmp_path: Path, chain: Chain
) -> None:
    torch.manual_seed(1)
    model = saved(tmp_path, *chain(bare), **PROMPTS)
    for engine in ENGINES:
        runner = runner_of(tmp_path, engine)
        assert isinstance(runner, RoutedRunner) == (chain in OWN.values())
        got_queries, got_documents = both(runner, prompts=True)
        assert greatest(got_queries - model.encode_query(TEXTS)) <= FP32_MAX_ABS_DIFF
        assert greatest(got_documents - model.encode_document(TEXTS)) <= FP32_MAX_ABS_DIFF


def test_hidden_states_come_from_the_encoder_of_the_way(bare: Bare, tmp_path: Path) -> None:
    saved(tmp_path, *OWN["two encoders with tokenizers of their own"](bare))
    runner = runner_of(tmp_path, "torch")
    query, document = (tokens_of(runner.card, TEXTS[:1], query=query) for query in (True, False))
    from_both = runner.run(PackedBatch.pack(query + document), OutputKind.HIDDEN).hidden
    assert from_both is not None
    assert [states.shape for states in from_both] == [(len(query[0]), SMALL), (len(document[0]), SIZE)]


def test_each_device_gets_both_ways_and_a_table_serves_all_of_them(bare: Bare, tmp_path: Path) -> None:
    saved(tmp_path, *OWN["a table beside an encoder"](bare))
    build = ENGINES["torch"].build
    first, second = build_runners(
        card_of(tmp_path), ModelTensors(tmp_path), lambda *arguments: [build(*arguments), build(*arguments)]
    )
    for ours, theirs in zip(both(first), both(second), strict=True):
        np.testing.assert_array_equal(ours, theirs)


DEFAULTS: dict[str, tuple[dict[str, Any], str | None]] = {
    "said": ({"default_route": "query"}, "query"),
    "said, the other": ({"default_route": "document"}, "document"),
    "the first route": ({"default_route": None}, "query"),
    "none": ({"default_route": None, "allow_empty_key": False}, None),
    "by a mapping": (
        {"route_mappings": {"(None, 'text')": "document", "('query', None)": "query"}},
        "document",
    ),
}


@pytest.mark.parametrize(("parameters", "want"), DEFAULTS.values(), ids=DEFAULTS)
def test_an_input_that_is_called_neither_takes_the_route_that_sentence_transformers_takes(
    bare: Bare, tmp_path: Path, parameters: dict[str, Any], want: str | None
) -> None:
    saved(tmp_path, *OWN["a table beside an encoder"](bare))
    edit(tmp_path / CONFIG, parameters=parameters)
    query = card_of(tmp_path).query
    assert query is not None
    assert query.default == want
    model = SentenceTransformer(str(tmp_path), device="cpu")
    if want is None:
        with pytest.raises(ValueError, match="Could not determine route"):
            model.encode("text")
    else:
        np.testing.assert_array_equal(model.encode("text"), model.encode("text", task=want))


def test_routes_that_are_one_make_a_model_like_any_other(bare: Bare, tmp_path: Path) -> None:
    saved(tmp_path, Router({"text": [bare.encoder(), pooling()]}))
    assert card_of(tmp_path).query is None


def test_the_identity_is_of_both_ways(bare: Bare, tmp_path: Path) -> None:
    identities = set()
    for name, chain in {**SHARED, **OWN}.items():
        torch.manual_seed(1)
        saved(tmp_path / name, *chain(bare))
        identities.add(card_of(tmp_path / name).vector_space)
    changed = tmp_path / "two modules beside none"
    edit(changed / "2_Router" / "query_0_Dense" / "config.json", use_residual=False)
    identities.add(card_of(changed).vector_space)
    assert len(identities) == len(SHARED) + len(OWN) + 1


INSPECTED = {
    "two modules beside none": [
        "the encoder of documents",
        "cls pooling, 1 dense, normalized",
        "at most 64 tokens",
    ],
    "a table beside an encoder": [
        "static embeddings (static-embedding), 3000 tokens",
        "mean pooling, normalized",
        "at most 32768 tokens",
    ],
    "two encoders with tokenizers of their own": [
        "bert encoder, 1 layers of 16",
        "max pooling, 2 dense, not normalized",
        "at most 40 tokens",
    ],
}


@pytest.mark.parametrize("name", INSPECTED)
def test_inspect_says_what_queries_take(
    bare: Bare, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    saved(tmp_path, *{**SHARED, **OWN}[name](bare))
    assert main(["inspect", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("Queries"))
    values = [line[15:] for line in lines[start : start + 4]]
    assert values == [*INSPECTED[name], "other inputs are a document"]
    assert "Engines        onnx: yes" in lines
    assert main(["inspect", "--json", str(tmp_path)]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["queries"]["sharesEncoder"] == (name in SHARED)
    assert facts["queries"]["default"] == "document"


def parameters(**changes: object) -> Callable[[Path], None]:
    return lambda folder: edit(folder / CONFIG, parameters=changes)


def structure(**routes: list[str]) -> Callable[[Path], None]:
    return lambda folder: edit(folder / CONFIG, structure=routes, parameters={})


def typed(**types: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        edit(folder / CONFIG, types=json.loads((folder / CONFIG).read_text())["types"] | types)

    return change


DOCUMENT = ["document_0_Transformer", "document_1_Pooling"]
QUERY = ["query_0_StaticEmbedding"]
REFUSED: dict[str, tuple[Callable[[Path], None], type[EmbedserveError], str]] = {
    "no route for documents": (
        structure(query=QUERY, passage=DOCUMENT),
        UnsupportedArchitecture,
        "the routes query, passage have none for 'document'; a route must be called so, or route_mappings",
    ),
    "a route more": (
        structure(query=QUERY, document=DOCUMENT, image=DOCUMENT),
        UnsupportedArchitecture,
        "neither texts called 'query' nor those called 'document' take the route image",
    ),
    "a default that neither takes": (
        lambda folder: edit(
            folder / CONFIG,
            structure={"query": QUERY, "document": DOCUMENT, "text": DOCUMENT},
            parameters={"default_route": "text"},
        ),
        UnsupportedArchitecture,
        "take the route text",
    ),
    "an unknown default": (
        parameters(default_route="other"),
        ModelInvalid,
        "structure lacks the route 'other'",
    ),
    "a mapping to nothing": (
        parameters(route_mappings={"('query', None)": "other"}),
        ModelInvalid,
        "structure lacks the route 'other'",
    ),
    "a mapping that is no pair": (
        parameters(route_mappings={"query": "query"}),
        ModelInvalid,
        "route_mappings: 'query' is not a pair of a task and a kind of input",
    ),
    "an empty route": (
        structure(query=[], document=DOCUMENT),
        ModelInvalid,
        "the route 'query' has no modules",
    ),
    "a router in a route": (
        typed(query_0_StaticEmbedding="models.Router"),
        UnsupportedArchitecture,
        "module models.Router is not supported",
    ),
    "other dimensions": (
        structure(query=[*QUERY, "query_1_Dense"], document=DOCUMENT),
        ModelInvalid,
        "its documents get vectors of 24 dimensions, its queries of 10",
    ),
}


@pytest.mark.parametrize(("damage", "want_error", "want_message"), REFUSED.values(), ids=REFUSED)
def test_routes_that_cannot_be_served_are_refused_by_name(
    bare: Bare,
    tmp_path: Path,
    damage: Callable[[Path], None],
    want_error: type[EmbedserveError],
    want_message: str,
) -> None:
    saved(tmp_path, Router.for_query_document([bare.table()], [bare.encoder(), pooling()]))
    typed(query_1_Dense="sentence_transformers.base.modules.dense.Dense")(tmp_path)
    (tmp_path / "query_1_Dense").mkdir()
    dense(SIZE, 10).save(str(tmp_path / "query_1_Dense"))
    damage(tmp_path)
    with pytest.raises(want_error, match=want_message):
        card_of(tmp_path)


def test_settings_for_one_way_are_refused(bare: Bare, tmp_path: Path) -> None:
    saved(tmp_path, *SHARED["two modules beside none"](bare))
    with pytest.raises(ConfigError, match=r"model\.pooling: cannot be set for a model that treats queries"):
        card_of(tmp_path, pooling="mean")
