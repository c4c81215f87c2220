"""Rerankers whose files do not say how they ask: by the name that their authors gave them.

A repository of a language model looks the same whether it is a chat model or a reranker, and rerankers of one class ask
in prompts of their own. The name is looked for in the source, in README.md and in config.json.

Sources: the model cards of Qwen3-Reranker, of bge-reranker-v2-gemma with FlagEmbedding 1.4.2 and of
llama-nemotron-rerank-1b-v2, the package mxbai-rerank 0.1.6, and the code next to zerank.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from embedserve_runtime.errors import UnsupportedArchitecture
from embedserve_runtime.model.heads.description import PromptTemplate


@dataclass(frozen=True, slots=True)
class Reranker:
    """The prompt and the answers of a kind of reranker.

    names: a regular expression for the beginning of its repositories' names, owner left out, in lower case.
    yes, no: the tokens whose logits are compared, of a language model; without `no` the logit of `yes` counts alone.
    divisor: of these logits.
    begins: whether the text begins with the tokenizer's own first token.
    """

    title: str
    names: str
    template: PromptTemplate
    yes: str = "yes"
    no: str | None = None
    divisor: float = 1.0
    begins: bool = False


QWEN3 = Reranker(
    "Qwen3-Reranker",
    r"qwen3-reranker-[\d.]+b",
    PromptTemplate(
        parts=(
            "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
            'Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n',
            "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}",
            "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        ),
        instruction="Given a web search query, retrieve relevant passages that answer the query",
    ),
    yes="yes",
    no="no",
)
_MXBAI_SYSTEM = (
    "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
    "<|im_start|>user\n"
)
_MXBAI_PAIR = (
    "query: {query}",
    "\n",
    "document: {document}",
    "\n",
    "You are a search relevance expert who evaluates how well documents match search queries. For each query-document "
    "pair, carefully analyze the semantic relationship between them, then provide your binary relevance judgment "
    "(0 for not relevant, 1 for relevant).\nRelevance:",
    "<|im_end|>\n<|im_start|>assistant\n",
)
MXBAI = Reranker(
    "mxbai-rerank-v2",
    r"mxbai-rerank-(base|large)-v2",
    PromptTemplate(
        # Instruction and query are tokenized as one text.
        parts=(_MXBAI_SYSTEM, "instruction: {instruction}\nquery: {query}", *_MXBAI_PAIR[1:]),
        plain_parts=(_MXBAI_SYSTEM, *_MXBAI_PAIR),
    ),
    yes="1",
    no="0",
)
BGE_GEMMA = Reranker(
    "bge-reranker-v2-gemma",
    r"bge-reranker-v2-gemma",
    PromptTemplate(
        parts=(
            "A: {query}",
            "\n",
            "B: {document}",
            "\n",
            "Given a query A and a passage B, determine whether the passage contains an answer to the query by "
            "providing a prediction of either 'Yes' or 'No'.",
        ),
    ),
    yes="Yes",
    begins=True,
)
ZERANK = Reranker(
    "zerank",
    r"zerank-\d+",
    PromptTemplate(
        parts=(
            "<|im_start|>system\n{query}<|im_end|>\n<|im_start|>user\n",
            "{document}",
            "<|im_end|>\n<|im_start|>assistant\n",
        ),
        strips=True,
    ),
    yes="Yes",
    divisor=5.0,
)
NEMOTRON = Reranker(
    "llama-nemotron-rerank",
    # The second is the class of config.json, whatever a copy of the model is called.
    r"llama-(nemotron-rerank|3\.2-nv-rerankqa)-1b-v\d|llamabidirectionalforsequenceclassification",
    PromptTemplate(parts=("question:{query} \n \n passage:{document}",)),
    begins=True,
)
RERANKERS = (QWEN3, MXBAI, BGE_GEMMA, ZERANK, NEMOTRON)
# What may follow the name of a kind: a size, a format, what somebody made of it.
_MORE = r"([-_.].*)?"
# By the beginning of a name, or a class of `architectures`, in lower case.
UNSUPPORTED = (
    (
        r"jina-reranker-v3|jinaforranking",
        "it is a listwise reranker, whose scores of a document depend on the other documents of the request",
    ),
    (r"bge-reranker-v2-minicpm-layerwise", "it has a head for each layer, which the caller chooses"),
    (r"layerwiseminicpmforcausallm", "it has a head for each layer, which the caller chooses"),
    (r"bge-reranker-v2\.5-gemma2-lightweight", "it has a head for each layer and joins tokens on the way"),
    (r"costwisegemmaforcausallm", "it has a head for each layer and joins tokens on the way"),
)


def find_reranker(names: Iterable[str]) -> Reranker | None:
    """Return the reranker that the first of the names stands for which stands for one."""
    ends = [_cut_owner(name) for name in names]
    return next(
        (reranker for end in ends for reranker in RERANKERS if re.fullmatch(reranker.names + _MORE, end)),
        None,
    )


def check_supported(path: Path, names: Iterable[str]) -> None:
    """Raise UnsupportedArchitecture for a reranker that is known and cannot be served.

    path: of config.json. names: of the repository, and the classes that config.json names.
    """
    for name in names:
        for pattern, reason in UNSUPPORTED:
            if re.fullmatch(pattern + _MORE, _cut_owner(name)):
                raise UnsupportedArchitecture(f"{path}: {name} is not supported: {reason}")


def list_titles() -> str:
    """List the names of the rerankers that are known, for messages."""
    return ", ".join(reranker.title for reranker in RERANKERS)


def _cut_owner(name: str) -> str:
    """Cut a name to the repository's own part, also that of a hub's cache (`models--OWNER--NAME/snapshots/COMMIT`)."""
    cached = re.search(r"models--[^/]*--([^/]+)", name)
    return (cached[1] if cached else name.rstrip("/").rsplit("/", 1)[-1]).strip().lower()
