"""Folders of models with a vector for each token, as PyLate saves them and in the layout of the ColBERT library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Transformer
from transformers import AutoTokenizer

from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.model.heads.description import Task
from embedserve_runtime.runners.base import Runner
from embedserve_runtime.service import EmbedQuery, Role
from embedserve_runtime.service.roles import resolve_prompt
from embedserve_runtime.tokenizing import InputEncoders, TextTokenizer
from tests.census.built import Built, Results
from tests.census.dense_folders import publish
from tests.census.encoders import ENCODERS, HIDDEN, EncoderKind, save_encoder
from tests.census.foreign import FOREIGN
from tests.census.layouts import edit_config, edit_tensors, read_json, write_json
from tests.census.repositories import Kind
from tests.census.sparse_folders import publish_inside
from tests.census.tokenizers import JINA_MARKERS
from tests.runtime.pipelines.folders import CUT, TEXTS

COLUMNS = 10
QUERY_MARKER, DOCUMENT_MARKER = "[Q] ", "[D] "


@dataclass(frozen=True, slots=True)
class StanfordLayout:
    """What differs between checkpoints of the ColBERT library. prefix: of the encoder's tensors. markers: of queries
    and documents. attends: whether queries attend to the mask tokens that fill them."""

    prefix: str
    markers: tuple[str, str]
    attends: bool


# By the encoder.
STANFORD: Mapping[str, StanfordLayout] = {
    "bert": StanfordLayout("bert.", ("[unused0]", "[unused1]"), attends=False),
    "jina-xlm-roberta": StanfordLayout("roberta.", JINA_MARKERS, attends=True),
}


def build_multi_vector(kind: Kind, folder: Path) -> Built:
    if kind.encoder in FOREIGN:
        FOREIGN[kind.encoder].save(folder)
        return Built(folder, Task.MULTI_VECTOR)
    if kind.behind == "hf-colbert":
        return _build_hf_colbert(ENCODERS[kind.encoder], STANFORD[kind.encoder], folder)
    save_encoder(_with_markers(ENCODERS[kind.encoder]), folder / "encoder")
    torch.manual_seed(3)
    widths = [HIDDEN, 2 * HIDDEN, COLUMNS] if kind.behind == "projections" else [HIDDEN, COLUMNS]
    layers = [
        Dense(
            into,
            out,
            bias=False,
            activation_function=torch.nn.Identity(),
            module_input_name="token_embeddings",
        )
        for into, out in pairwise(widths)
    ]
    saved = folder / "saved"
    model = MultiVectorEncoder(modules=[Transformer(str(folder / "encoder")), *layers], device="cpu")
    model.save_pretrained(str(saved), create_model_card=False)
    _write_as_pylate(saved, len(layers))
    published = publish_inside(kind, saved, folder / "published")

    return Built(published, Task.MULTI_VECTOR, "MultiVectorEncoder", _run, _expect(saved), saved)


def _with_markers(encoder: EncoderKind) -> EncoderKind:
    """The encoder with the markers of queries and documents in its tokenizer, as PyLate adds them before training."""

    def save_tokenizer(folder: Path) -> None:
        encoder.tokenizer(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.add_tokens([QUERY_MARKER, DOCUMENT_MARKER])
        tokenizer.save_pretrained(folder)

    return replace(encoder, tokenizer=save_tokenizer)


def _expect(folder: Path) -> Callable[[Runner], Results]:
    """folder: as the loader reads it."""

    def expected(_: Runner) -> Results:
        model = MultiVectorEncoder(str(folder), device="cpu")
        encoders = (model.encode_document, model.encode_query)
        return [one for encode in encoders for one in encode(TEXTS, convert_to_numpy=True)]

    return expected


def _run(runner: Runner) -> Results:
    """The vectors of each text as a document, then of each as a query; float32 [tokens, columns]."""
    return [*_run_as(runner, "document"), *_run_as(runner, "query")]


def _run_as(runner: Runner, role: Role) -> Results:
    card = runner.card
    encoders = InputEncoders.for_model(card, TextTokenizer.from_card(card))
    encoder = encoders.queries if role == "query" else encoders.documents
    ids = encoder.encode(TEXTS, resolve_prompt(card, EmbedQuery(TEXTS, role=role)), CUT)
    found = runner.run(PackedBatch.pack(ids), OutputKind.MULTI_VECTOR).multi_vectors
    assert found is not None
    return found


def _write_as_pylate(folder: Path, projections: int) -> None:
    """The folder as PyLate 1 to 3 saved it: no modules but the projections, all settings in one file."""
    modules = read_json(folder / "modules.json")[: 1 + projections]
    for module in modules[1:]:
        module["type"] = "pylate.models.Dense.Dense"
        path = folder / module["path"] / "config.json"
        content = read_json(path)
        dropped = ("module_input_name", "module_output_name")
        write_json(path, {key: value for key, value in content.items() if key not in dropped})
    write_json(folder / "modules.json", modules)
    path = folder / "config_sentence_transformers.json"
    settings = {
        "model_type": "ColBERT",
        "query_prefix": QUERY_MARKER,
        "document_prefix": DOCUMENT_MARKER,
        "query_length": 24,
        "document_length": 180,
        "attend_to_expansion_tokens": False,
        "do_query_expansion": False,
        "skiplist_words": [".", ","],
    }
    write_json(path, read_json(path) | settings)


def _build_hf_colbert(encoder: EncoderKind, layout: StanfordLayout, folder: Path) -> Built:
    """The layout of the ColBERT library: the projection at the root, all settings in artifact.metadata."""
    twin = folder / "encoder"
    save_encoder(encoder, twin)
    torch.manual_seed(4)
    added = {"linear.weight": torch.randn(COLUMNS, HIDDEN) * 0.3}
    # Of the class, and read by nobody.
    added |= {f"{layout.prefix}pooler.dense.weight": torch.randn(HIDDEN, HIDDEN)}
    added |= {f"{layout.prefix}pooler.dense.bias": torch.randn(HIDDEN)}
    edit_tensors(twin, renamed={"": layout.prefix}, added=added)
    edit_config(twin, architectures=["HF_ColBERT"])
    query, document = layout.markers
    metadata = {
        "query_token_id": query,
        "doc_token_id": document,
        "query_token": "[Q]",
        "doc_token": "[D]",
        "attend_to_mask_tokens": layout.attends,
        "dim": COLUMNS,
        "doc_maxlen": 60,
        "query_maxlen": 32,
        "mask_punctuation": True,
    }
    write_json(twin / "artifact.metadata", metadata)
    published = publish(encoder, twin, folder / "published")
    return Built(published, Task.MULTI_VECTOR, "MultiVectorEncoder", _run, _expect(twin), twin)
