"""What the runtime makes of a kind of repository: its folder is built, and read by the runtime's own reader."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from embedserve_runtime.config import ModelSettings, load_config
from embedserve_runtime.errors import EmbedserveError
from embedserve_runtime.loading.runners import load_runner
from embedserve_runtime.model.exports import ADVICE
from embedserve_runtime.model.reading import read_card
from embedserve_runtime.runners.base import Runner
from tests.census.built import Built
from tests.census.dense_folders import build_dense
from tests.census.multi_vector_folders import build_multi_vector
from tests.census.other_folders import build_several, build_static
from tests.census.repositories import Kind
from tests.census.rerank_folders import build_reranker
from tests.census.sparse_folders import build_sparse

BUILDERS: Mapping[str, Callable[[Kind, Path], Built]] = {
    "dense": build_dense,
    "rerank": build_reranker,
    "sparse": build_sparse,
    "late-interaction": build_multi_vector,
    "several": build_several,
    "static": build_static,
}
# The Hub's names of tasks.
PIPELINES: Mapping[str, str] = {
    "dense": "sentence-similarity",
    "rerank": "text-ranking",
    "sparse": "feature-extraction",
    "late-interaction": "sentence-similarity",
    "several": "sentence-similarity",
    "static": "sentence-similarity",
}
ENGINES = ("onnx", "torch")
WITHOUT_FILE = "; it has no ONNX file to run instead"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the runtime makes of a kind.

    refusal: the words with which a repository of the kind is refused, empty where it is served. can_be_exported:
    whether these words name `embedserve convert`. taken_for: what it is served as, where that is not what it is for.
    loader: what its results are compared with, empty for nothing.
    """

    refusal: str = ""
    can_be_exported: bool = False
    taken_for: str = ""
    loader: str = ""

    @property
    def is_served(self) -> bool:
        return not self.refusal and not self.taken_for


def build_kind(kind: Kind, folder: Path) -> Built:
    """Write the small folder of a kind, with the README.md that the Hub's pages have."""
    built = BUILDERS[kind.task](kind, folder)
    title = built.folder.name
    metadata = f"library_name: transformers\npipeline_tag: {PIPELINES[kind.task]}\n"
    (built.folder / "README.md").write_text(f"---\n{metadata}---\n\n# {title}\n")
    return built


def judge_kind(built: Built) -> Verdict:
    """Read the folder as a server does at its start."""
    try:
        card = read_card(built.folder, "local", ModelSettings(source=str(built.folder)))
    except EmbedserveError as error:
        return Verdict(_shorten_message(error.message, built.folder), can_be_exported=ADVICE in error.message)
    if card.task is not built.task:
        return Verdict(taken_for=str(card.task))
    return Verdict(loader=built.loader)


def _shorten_message(message: str, folder: Path) -> str:
    """Without the folder, what `embedserve convert` can, and the list of everything that is supported."""
    for words in (f"; {ADVICE}", WITHOUT_FILE, f"{folder}/", f"{folder}: "):
        message = message.replace(words, "")
    return re.sub(r"; supported: [^;]*", "", message).replace(str(folder), "the folder")


def open_runners(built: Built) -> list[Runner]:
    """The folder as a server runs it, on both engines where it has layers to run."""
    kinds = ("auto",) if built.is_table else ENGINES
    return [
        load_runner(
            load_config(
                flags={"model": {"source": str(built.folder)}, "engine": {"kind": kind, "threads": 1}}
            )
        )
        for kind in kinds
    ]
