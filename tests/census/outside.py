"""What a kind of repository is compared with in the environment of the oracles: the loader that its authors recommend,
with transformers 4."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.census.built import Built, Results
from tests.census.kinds import Verdict, build_kind, judge_kind
from tests.census.other_folders import M3_TEXTS
from tests.census.repositories import Kind, read_repositories
from tests.census.rerank_folders import PAIRS
from tests.census.transformers_4 import write_for_version_4
from tests.runtime.pipelines.folders import TEXTS
from tests.support.static_models import TEXTS as STATIC_TEXTS

# Of the files of dense kinds.
MAX_LENGTH = 40
FLAG_CLASSES: Mapping[str, str] = {
    "mistral-eos": "FlagICLModel",
    "gemma2": "FlagLLMModel",
    "qwen2": "FlagLLMModel",
}

NO_CLASS = "transformers 4 has no class for it, and the tests do not have the repository's own code"
OWN_CODE = (
    "neither version of transformers has a class for it, and the tests do not have the repository's own code"
)
BOTH_WAYS = (
    "transformers 4 does not read `is_causal`: attention both ways is the repository's own code, which the tests do "
    "not have"
)
LATER_MODULES = "CrossEncoder has such modules from sentence-transformers 5.4 on, and PyLate asks for 5.3"
# Why a kind is not compared with the loader that its authors recommend: by its encoder, or by what stands behind it.
REASONS: Mapping[str, str] = {
    **dict.fromkeys(("new", "gte", "nomic-bert", "jina-embeddings-v3"), NO_CLASS),
    **dict.fromkeys(("xlm-roberta-flash-adapters", "jina-xlm-roberta"), NO_CLASS),
    **dict.fromkeys(("eurobert", "ministral3", "embedding-gemma2"), "transformers 4 has no class for it"),
    **dict.fromkeys(("jina-bert", "jina-bert-code", "nomic-bert-moe"), OWN_CODE),
    **dict.fromkeys(("jina-v5-qwen3", "jina-v5-eurobert"), OWN_CODE),
    **dict.fromkeys(("qwen2-bidirectional", "qwen2-bidirectional-eos", "llama-bidirectional"), BOTH_WAYS),
    "pplx-qwen3": BOTH_WAYS,
    **dict.fromkeys(("cls dense layer-norm dense", "yes-no", "yes-by-5"), LATER_MODULES),
}


@dataclass(frozen=True, slots=True, order=True)
class Pair:
    """A kind, and a loader that is recommended for a repository of it."""

    kind: Kind
    loader: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.loader}"

    @property
    def reason(self) -> str:
        """Why the kind is not compared with the loader; empty where it is."""
        return REASONS.get(self.kind.encoder) or REASONS.get(self.kind.behind, "")

    @property
    def runs_outside(self) -> bool:
        """Whether the loader is one of the environment of the oracles: model2vec is in that of the tests."""
        return self.loader in ASKS


def list_pairs() -> list[Pair]:
    """Every pair once, in the order of the table."""
    return list(dict.fromkeys(Pair(one.kind, one.loader) for one in read_repositories()))


@dataclass(frozen=True, slots=True)
class Comparison:
    """built: the folder as a repository of the time of transformers 4 has it. ask: what the loader is asked."""

    built: Built
    ask: Mapping[str, Any]


def prepare(pair: Pair, folder: Path) -> Comparison | Verdict:
    """Write the folders of a pair; what the runtime makes of its kind where that is not served, or compared in a test
    of its own."""
    newest = folder / "version_5"
    newest.mkdir(parents=True)
    built = build_kind(pair.kind, newest)
    verdict = judge_kind(built)
    if not verdict.is_served or built.results is None:
        return verdict
    # The name of a folder can say which model it is.
    served = write_for_version_4(built.folder, folder / "version_4" / built.folder.name)
    read = served
    if built.loader_folder is not None and built.loader_folder != built.folder:
        read = write_for_version_4(built.loader_folder, folder / "of_the_loader")
    ask = {"folder": str(read), **ASKS[pair.loader](pair.kind, read)}
    return Comparison(Built(served, built.task, results=built.results, is_table=built.is_table), ask)


def read_results(answer: Mapping[str, Any]) -> Results:
    """The arrays of an answer that is no error."""
    return [np.array(one, dtype=np.float32) for one in answer["results"]]


def _ask_dense(kind: Kind, _: Path) -> Mapping[str, Any]:
    named = {"prompt_name": "instruction"} if kind.behind.startswith("mean-without-prompt") else {}
    texts = STATIC_TEXTS if kind.task == "static" else TEXTS
    return {"oracle": "sentence_transformers", "texts": texts, **named}


def _ask_sparse(kind: Kind, _: Path) -> Mapping[str, Any]:
    return {
        "oracle": "sparse_encoder",
        "texts": TEXTS,
        "asymmetric": "weights-for-queries" in kind.behind,
    }


def _ask_flag_embedding(kind: Kind, folder: Path) -> Mapping[str, Any]:
    if kind.task == "rerank":
        return {"oracle": "flag_llm_reranker", "pairs": PAIRS}
    if kind.task == "several":
        config = json.loads((folder / "config.json").read_text())
        sizes = {"vocabulary": config["vocab_size"], "columns": config["hidden_size"]}
        return {"oracle": "flag_m3", "texts": M3_TEXTS, **sizes}
    return {
        "oracle": "flag_dense",
        "class": FLAG_CLASSES[kind.encoder],
        # By default version 4 leaves out Gemma 2's cap on attention scores.
        "attention": "eager" if kind.encoder == "gemma2" else None,
        "texts": TEXTS,
        "max_length": MAX_LENGTH,
    }


ASKS: Mapping[str, Callable[[Kind, Path], Mapping[str, Any]]] = {
    "sentence-transformers": _ask_dense,
    "CrossEncoder": lambda *_: {"oracle": "cross_encoder", "pairs": PAIRS},
    "SparseEncoder": _ask_sparse,
    "PyLate": lambda *_: {"oracle": "pylate", "texts": TEXTS},
    "FlagEmbedding": _ask_flag_embedding,
    "mxbai-rerank": lambda *_: {"oracle": "mxbai_rerank", "pairs": PAIRS},
}
