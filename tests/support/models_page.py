"""The table behind docs/models.md. `python -m tests.support.models_page` writes the page; a test finds it stale."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


@dataclass(frozen=True, slots=True)
class FamilyRow:
    """One row. cases: how the names of its tests begin; engines: the ones that run it."""

    family: str
    model_types: tuple[str, ...]
    cases: tuple[str, ...]
    what: str
    refused: str
    examples: tuple[str, ...]
    engines: tuple[str, ...] = ("onnx", "torch")
    oracle: str = "transformers"


TABLE = (
    FamilyRow(
        "BERT, RoBERTa, XLM-RoBERTa, CamemBERT",
        ("bert", "roberta", "xlm-roberta", "camembert"),
        ("bert", "roberta", "xlm-roberta", "camembert"),
        "absolute positions; old norm names (gamma, beta); names with and without the prefix of a head",
        "relative positions, decoders",
        ("sentence-transformers/all-MiniLM-L6-v2", "BAAI/bge-m3", "intfloat/multilingual-e5-large"),
    ),
    FamilyRow(
        "DistilBERT",
        ("distilbert",),
        ("distilbert",),
        "learned and sinusoidal tables",
        "–",
        ("sentence-transformers/msmarco-distilbert-base-v4",),
    ),
    FamilyRow(
        "MPNet",
        ("mpnet",),
        ("mpnet",),
        "relative position bias shared by all layers",
        "another number of buckets than 32 (transformers computes no other)",
        ("sentence-transformers/all-mpnet-base-v2",),
    ),
    FamilyRow(
        "ModernBERT",
        ("modernbert",),
        ("modernbert",),
        "local and global layers, two rotary bases, all biases on or off",
        "unknown types of layers",
        ("nomic-ai/modernbert-embed-base", "Alibaba-NLP/gte-modernbert-base"),
    ),
    FamilyRow(
        "GTE v1.5 and multilingual",
        ("new", "gte"),
        ("gte",),
        "the public code's names and transformers' own; NTK scaling, fixed and mixed",
        "RMS norms, absolute positions, logarithmic attention scale",
        ("Alibaba-NLP/gte-multilingual-base", "Alibaba-NLP/gte-large-en-v1.5"),
    ),
    FamilyRow(
        "NomicBERT",
        ("nomic_bert",),
        ("nomic",),
        "the public code's config.json and transformers' own; partial rotary positions, biases on or off",
        "mixture of experts (v2), norms first, interleaved rotary positions, xPos, sigmoid gates; "
        "with `rotary_scaling_factor` texts beyond the trained positions",
        ("nomic-ai/nomic-embed-text-v1.5", "Snowflake/snowflake-arctic-embed-m-long"),
    ),
    FamilyRow(
        "JinaBERT v2",
        ("bert",),
        ("jina,",),
        'config.json says "bert" and names Jina\'s code or `alibi`; gates by GELU or ReLU',
        "absolute positions, MLPs without a gate",
        ("jinaai/jina-embeddings-v2-base-en", "jinaai/jina-embeddings-v2-small-en"),
        oracle="our own, from the public description",
    ),
    FamilyRow(
        "JinaBERT v2 for code",
        ("bert",),
        ("jina code",),
        "norms on queries and keys over all heads; `auto_map` names jina-bert-v2-qk-post-norm",
        "as above, and without those norms",
        ("jinaai/jina-embeddings-v2-base-code",),
        oracle="our own, from the public description",
    ),
    FamilyRow(
        "DeBERTa v2, v3",
        ("deberta-v2",),
        ("deberta",),
        "both position terms or one, log buckets, shared projections, norm of the relative table",
        "convolution (v2 xlarge), embeddings narrower than the layers",
        ("mixedbread-ai/mxbai-rerank-base-v1", "microsoft/deberta-v3-base"),
        engines=("torch",),
    ),
    FamilyRow(
        "Qwen2, Qwen3",
        ("qwen2", "qwen3"),
        ("qwen2", "qwen3"),
        "causal, or bidirectional by `is_causal` or `use_bidirectional_attention`; windows; grouped heads",
        "code of the repository's own (`auto_map`) where neither key is given",
        ("Qwen/Qwen3-Embedding-0.6B", "Alibaba-NLP/gte-Qwen2-1.5B-instruct"),
    ),
    FamilyRow(
        "Mistral",
        ("mistral",),
        ("mistral",),
        "causal or bidirectional, with and without a window",
        "as Qwen; `layer_types`",
        ("intfloat/e5-mistral-7b-instruct",),
    ),
    FamilyRow(
        "Llama",
        ("llama", "llama_bidirec"),
        ("llama",),
        "causal or bidirectional (`llama_bidirec` always is), biases on or off",
        "as Qwen",
        ("nvidia/llama-3.2-nv-embedqa-1b-v2",),
    ),
    FamilyRow(
        "Gemma 3 text, EmbeddingGemma",
        ("gemma3_text",),
        ("gemma3",),
        "causal or bidirectional, local and global layers with their own rotary bases",
        "soft caps on attention scores",
        ("google/embeddinggemma-300m",),
    ),
)

HEAD = """\
# Models

<!-- Written by `python -m tests.support.models_page`; change the table there. -->

A family is a short file in `model/families/` that reads `config.json` and describes the encoder; both engines run the
description. Whatever would change the vectors and is not supported stops the start with the file and the field.
`config.json` is read as transformers 4 and as transformers 5 save it.

| family | `model_type` | engines | what works | refused by name |
|---|---|---|---|---|
"""
ROTARY = """
Rotary scaling: default, linear, dynamic (up to the trained length, where it rests), yarn, llama3, and ntk of GTE.
Every other type is refused.

## Tested against

Each family runs on each of its engines with at least three tiny random models of odd shapes, and every sequence is
compared with the oracle computing it alone (`tests/runtime/engines/cases.py`). The repositories are examples of what
the family is for; their weights are not part of these tests.

| family | oracle | examples |
|---|---|---|
"""


def render() -> str:
    """The page."""
    supported = "".join(
        f"| {row.family} | {_code(row.model_types)} | {', '.join(row.engines)} | {row.what} | {row.refused} |\n"
        for row in TABLE
    )
    tested = "".join(f"| {row.family} | {row.oracle} | {', '.join(row.examples)} |\n" for row in TABLE)
    return HEAD + supported + ROTARY + tested


def _code(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    PAGE.write_text(render())
