"""The table behind docs/models.md. `python -m tests.support.models_page` writes the page; a test finds it stale.

What a family can, is written here; which heads it has and how many models test it is counted in the code's registries
and in the tables that the tests run.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from pathlib import Path

from embedserve_runtime.model.families.refused import OTHER_INPUTS, OTHER_LAYERS
from embedserve_runtime.model.heads import classifiers, masked_lm, token_classifiers
from tests.runtime.engines.cases import CASES
from tests.runtime.heads import head_cases

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


@dataclass(frozen=True, slots=True)
class FamilyRow:
    """One row. cases: how the names of its tests begin; heads: its classes' names without the part for the head."""

    family: str
    model_types: tuple[str, ...]
    cases: tuple[str, ...]
    what: str
    refused: str
    examples: tuple[str, ...]
    heads: tuple[str, ...] = ()
    oracle: str = "transformers"


TABLE = (
    FamilyRow(
        "BERT, RoBERTa, XLM-RoBERTa, CamemBERT",
        ("bert", "roberta", "xlm-roberta", "camembert"),
        ("bert", "roberta", "xlm-roberta", "camembert"),
        "absolute positions; older names of norms (gamma, beta); names with and without the prefix of a head",
        "relative positions, decoders",
        ("sentence-transformers/all-MiniLM-L6-v2", "BAAI/bge-m3", "intfloat/multilingual-e5-large"),
        heads=(
            "Bert",
            "Roberta",
            "XLMRoberta",
            "Camembert",
        ),
    ),
    FamilyRow(
        "ELECTRA",
        ("electra",),
        ("electra",),
        "embeddings of another width than the layers, projected after their norm",
        "as BERT",
        ("cross-encoder/ms-marco-electra-base",),
        heads=("Electra",),
    ),
    FamilyRow(
        "ALBERT",
        ("albert",),
        ("albert",),
        "layers that share their weights (each has a copy in memory), narrow embeddings",
        "several groups of layers, embeddings as wide as the layers",
        ("sentence-transformers/paraphrase-albert-small-v2",),
        heads=("Albert",),
    ),
    FamilyRow(
        "DistilBERT",
        ("distilbert",),
        ("distilbert",),
        "learned and sinusoidal tables",
        "–",
        ("sentence-transformers/msmarco-distilbert-base-v4",),
        heads=("DistilBert",),
    ),
    FamilyRow(
        "MPNet",
        ("mpnet",),
        ("mpnet",),
        "relative position bias shared by all layers",
        "a number of buckets other than 32 (transformers computes no other)",
        ("sentence-transformers/all-mpnet-base-v2",),
        heads=("MPNet",),
    ),
    FamilyRow(
        "ModernBERT",
        ("modernbert",),
        ("modernbert",),
        "local and global layers, two rotary bases, all biases on or off",
        "unknown layer types",
        ("nomic-ai/modernbert-embed-base", "Alibaba-NLP/gte-modernbert-base"),
        heads=("ModernBert",),
    ),
    FamilyRow(
        "GTE v1.5 and multilingual",
        ("new", "gte"),
        ("gte",),
        "the public code's names and transformers' own; NTK scaling, fixed and mixed",
        "RMS norms, absolute positions, logarithmic attention scale",
        ("Alibaba-NLP/gte-multilingual-base", "Alibaba-NLP/gte-large-en-v1.5"),
        heads=(
            "Gte",
            "New",
        ),
    ),
    FamilyRow(
        "NomicBERT",
        ("nomic_bert",),
        ("nomic, ",),
        "the public code's config.json and transformers' own; partial rotary positions, biases on or off",
        "norms first, interleaved rotary positions, xPos, sigmoid gates; "
        "with `rotary_scaling_factor` texts beyond the trained positions",
        ("nomic-ai/nomic-embed-text-v1.5", "Snowflake/snowflake-arctic-embed-m-long"),
        heads=("NomicBert",),
    ),
    FamilyRow(
        "NomicBERT v2",
        ("nomic_bert",),
        ("nomic v2",),
        "a mixture of experts in every n-th layer; a token runs only through the experts chosen for it",
        "gated or shared experts, experts that choose their tokens, normalized router weights",
        ("nomic-ai/nomic-embed-text-v2-moe",),
        oracle="the project's own, from the public description",
    ),
    FamilyRow(
        "JinaBERT v2",
        ("bert",),
        ("jina,",),
        'config.json says "bert" and names Jina\'s code or `alibi`; MLPs gated by GELU or ReLU',
        "absolute positions, MLPs without a gate",
        ("jinaai/jina-embeddings-v2-base-en", "jinaai/jina-embeddings-v2-small-en"),
        heads=("JinaBert",),
        oracle="the project's own, from the public description",
    ),
    FamilyRow(
        "JinaBERT v2 for code",
        ("bert",),
        ("jina code",),
        "norms on queries and keys over all heads; `auto_map` names jina-bert-v2-qk-post-norm",
        "as above, and without those norms",
        ("jinaai/jina-embeddings-v2-base-code",),
        oracle="the project's own, from the public description",
    ),
    FamilyRow(
        "jina-embeddings-v3",
        ("jina_embeddings_v3", "xlm-roberta"),
        ("jina_embeddings_v3",),
        "the layout that transformers saves; that of xlm-roberta-flash-implementation, with rotary positions or a "
        "table of positions; [adapters by task](#adapters-by-task)",
        "ALiBi",
        (
            "jinaai/jina-embeddings-v3",
            "jinaai/jina-embeddings-v3-hf",
            "jinaai/jina-reranker-v2-base-multilingual",
        ),
        heads=("JinaEmbeddingsV3",),
    ),
    FamilyRow(
        "T5 encoders",
        ("t5",),
        ("t5",),
        "relative position bias shared by all layers, with and without a gate; up to `n_positions` tokens, else 512",
        "models whose result is the decoder's",
        (
            "sentence-transformers/gtr-t5-base",
            "sentence-transformers/sentence-t5-xl",
            "hkunlp/instructor-large",
        ),
    ),
    FamilyRow(
        "DeBERTa v2, v3",
        ("deberta-v2",),
        ("deberta",),
        "both position terms or one, log buckets, shared projections, norm of the relative table; the convolution of "
        "v2 xlarge; embeddings of another width than the layers",
        "heads of another size than hidden size / heads, grouped convolutions or even kernels, pooling of another size",
        ("mixedbread-ai/mxbai-rerank-base-v1", "microsoft/deberta-v3-base"),
        heads=("DebertaV2",),
    ),
    FamilyRow(
        "Qwen2, Qwen3",
        ("qwen2", "qwen3", "bidirectional_pplx_qwen3", "jina_embeddings_v5"),
        ("qwen2", "qwen3"),
        "causal (`jina_embeddings_v5` always is), or bidirectional by `is_causal` or `use_bidirectional_attention` "
        "(`bidirectional_pplx_qwen3` always is); windows; grouped heads; [adapters by task](#adapters-by-task)",
        "the repository's own code (`auto_map`) without either key",
        (
            "Qwen/Qwen3-Embedding-0.6B",
            "Alibaba-NLP/gte-Qwen2-1.5B-instruct",
            "jinaai/jina-embeddings-v5-text-small",
        ),
        heads=(
            "Qwen2",
            "Qwen3",
        ),
    ),
    FamilyRow(
        "Mistral, Ministral 3",
        ("mistral", "ministral3"),
        ("mistral", "ministral3"),
        "causal or bidirectional, with and without a window; Ministral 3 up to `original_max_position_embeddings` "
        "tokens, beyond which it would scale its queries",
        "as Qwen; `layer_types`",
        ("intfloat/e5-mistral-7b-instruct", "nvidia/Nemotron-3-Embed-1B-BF16"),
        heads=("Mistral",),
    ),
    FamilyRow(
        "Llama, EuroBERT",
        ("llama", "llama_bidirec", "eurobert", "jina_embeddings_v5"),
        ("llama", "eurobert"),
        "causal or bidirectional (`llama_bidirec`, `eurobert`, and `jina_embeddings_v5` where `is_decoder` is false, "
        "always are), biases on or off; [adapters by task](#adapters-by-task)",
        "as Qwen",
        (
            "nvidia/llama-3.2-nv-embedqa-1b-v2",
            "VAGOsolutions/SauerkrautLM-EuroColBERT",
            "jinaai/jina-embeddings-v5-text-nano",
        ),
        heads=("Llama", "LlamaBidirectional"),
    ),
    FamilyRow(
        "Gemma, Gemma 2",
        ("gemma", "gemma2"),
        ("gemma,", "gemma2"),
        "causal, or bidirectional by `is_causal`; Gemma 2 with its cap on attention scores, local and global layers",
        "the repository's own code (`auto_map`) without `is_causal`; `use_bidirectional_attention` without it",
        ("BAAI/bge-multilingual-gemma2", "BAAI/bge-reranker-v2-gemma"),
        heads=("Gemma", "Gemma2"),
    ),
    FamilyRow(
        "EmbeddingGemma 2",
        ("embedding_gemma2", "embedding_gemma2_text"),
        ("embedding_gemma2",),
        "texts only, of up to 32,768 tokens: the towers for images and sound are neither loaded nor part of the "
        "identity; not in the fused kernels",
        "unknown layer types",
        ("google/embeddinggemma-2",),
    ),
    FamilyRow(
        "Gemma 3 text, EmbeddingGemma",
        ("gemma3_text",),
        ("gemma3",),
        "causal or bidirectional, local and global layers with their own rotary bases",
        "soft caps on attention scores",
        ("google/embeddinggemma-300m",),
        heads=("Gemma3Text",),
    ),
)

HEAD = """\
# Models

<!-- Written by `python -m tests.support.models_page`; change the table there. -->

Encoders of these families are served, with ONNX Runtime on CPUs and with torch on CPUs and GPUs. The family is chosen
by `model_type` in `config.json`, as saved by transformers 4 or 5. If a value in it would change the vectors and is
not supported, the server does not start, and the message names the file and the field.

| family | `model_type` | supported | refused |
|---|---|---|---|
"""
ROTARY = """
Rotary scaling may be default, linear, dynamic (up to the trained length, where it has no effect), yarn, llama3,
proportional, or GTE's ntk. Every other type is refused.

## Adapters by task

Some models have a LoRA adapter for each of several tasks, and each task is a vector space of its own. List those that
are served in `model.adapters` (`spec.model.adapters`), for example `[retrieval, text-matching]`:

| model | tasks | without the setting |
|---|---|---|
| jina-embeddings-v3 | `retrieval`, `separation`, `classification`, `text-matching` | the plain weights |
| jina-embeddings-v5-text | `retrieval`, `text-matching`, `clustering`, `classification` | `retrieval` |

- Each adapter is merged into weights of its own while loading, in float32: memory grows with each task. The vectors are
  the same as with one task alone.
- A request chooses by `task` or `input_type`, where the word names a task (`retrieval.query`, `search_document`,
  `text-matching`), or by a `prompt_name` that one task alone has. `query`, `document` and `passage` choose the first
  task with a prompt for them. Otherwise a request gets the first task of the list. The header
  `X-Embedserve-Vector-Space` tells the space of the answer, `/info` and `inspect` those of all tasks. `/v1/score` and
  the gRPC calls `Encode` and `Score` have `task` too; TEI's gRPC calls choose by `prompt_name`. In a cluster,
  `status.model.adapterTasks` lists the tasks that the model has, with the vector spaces of those that are served;
  `status.vectorSpace` is that of the first.
- Two adapters whose names end with `.query` and `.passage` are one task, whose queries and documents can be compared.
  Each has weights of its own. Without a word for queries, inputs are documents.
- Only the prompts of served tasks are known; the default one of a task is that of its documents. A request for a task
  that is not served is refused with the list (HTTP 422).
- An ONNX file of the repository is not run with an adapter.

## Not supported

These model types are refused with the reason given here. `embedserve convert` exports none of those that read images
or sound, nor `lfm2`; it may export the others.

| `model_type` | why |
|---|---|
{refused}
## Heads

The class in `architectures` of `config.json` decides whether a model has a classifier (also for rerankers), a
masked-LM head (sparse vectors), or a token classifier with one label (token weights beside dense vectors; see
[heads](heads.md#dense-and-sparse-of-one-forward)). In the table, `...` stands for `ForSequenceClassification`,
`ForMaskedLM` or `ForTokenClassification`:

| family | classifiers | masked LM | token weights |
|---|---|---|---|
"""
TESTED = """
Classifiers of decoders read the last token whose id is not `pad_token_id`, as transformers 5 does; those of
`LlamaBidirectional...` what `pooling` in `config.json` names (`avg`, `cls`, `last`), as do encoders of `llama_bidirec`
without a `modules.json`.

## Tests

Tiny random models with unusual shapes run on both engines, and each sequence is compared with what the reference
computes for it alone (`tests/runtime/engines/cases.py`, `tests/runtime/heads/head_cases.py`). The lengths are 1, 2
and 17 tokens, the model's maximum, and around the edge of each window. The columns count the models. The repositories
are examples of the family; their weights are not part of these tests.

| family | encoders | with a head | reference | examples |
|---|---|---|---|---|
"""


# In the order of the table's columns.
REGISTRIES = (classifiers.CLASSIFIERS, masked_lm.MASKED_LMS, token_classifiers.TOKEN_CLASSIFIERS)


def render() -> str:
    """The page."""
    supported = "".join(
        f"| {row.family} | {_code(row.model_types)} | {row.what} | {row.refused} |\n" for row in TABLE
    )
    heads = "".join(
        f"| {row.family} | {' | '.join(_known(row, registry) for registry in REGISTRIES)} |\n"
        for row in TABLE
        if row.heads
    )
    tested = "".join(
        f"| {row.family} | {_encoders(row)} | {_with_a_head(row)} | {row.oracle} | {', '.join(row.examples)} |\n"
        for row in TABLE
    )
    return HEAD + supported + ROTARY.format(refused=_list_refused()) + heads + TESTED + tested


def _list_refused() -> str:
    """Rows of the model types that share a reason."""
    reasons: dict[str, list[str]] = {}
    for model_type, why in {**OTHER_INPUTS, **OTHER_LAYERS}.items():
        reasons.setdefault(why, []).append(model_type)
    return "".join(f"| {_code(types)} | {why} |\n" for why, types in reasons.items())


def _known(row: FamilyRow, registry: Container[str]) -> str:
    return _code(f"{name}..." for name in row.heads if name in registry) or "–"


def _encoders(row: FamilyRow) -> int:
    return sum(case.name.startswith(row.cases) for case in CASES)


def _with_a_head(row: FamilyRow) -> int:
    cases = (*head_cases.CLASSIFIERS, *head_cases.MASKED_LMS, *head_cases.TOKEN_CLASSIFIERS)
    return sum(case.family in row.heads for case in cases)


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    PAGE.write_text(render())
