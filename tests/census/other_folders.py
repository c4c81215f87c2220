"""Folders of models with several outputs, and of tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.heads.dense import normalize
from embedserve_runtime.model.heads.description import Task
from embedserve_runtime.runners.base import Runner
from tests.census.built import Built, Results
from tests.census.encoders import HIDDEN
from tests.census.foreign import FOREIGN
from tests.census.gte_multilingual import build_gte_multilingual
from tests.census.layouts import read_json
from tests.census.repositories import Kind
from tests.runtime.heads.test_bge_m3 import M3
from tests.runtime.pipelines.folders import embed, tokens_of
from tests.runtime.pipelines.test_sparse_pipelines import rows
from tests.support.static_models import TEXTS as STATIC_TEXTS
from tests.support.static_models import Saved, sentence_transformer

M3_TEXTS = ("ba de ba ba fi", "ku", "pai xyz pai nou <mask>")


def build_several(kind: Kind, folder: Path) -> Built:
    if kind.encoder in FOREIGN:
        FOREIGN[kind.encoder].save(folder)
        return Built(folder, Task.EMBED)
    if kind.encoder == "new":
        # Compared in full by test_gte_multilingual.py.
        return Built(build_gte_multilingual(folder, "new").folder, Task.EMBED, "transformers")
    model = M3.save(folder, 2, 3, HIDDEN, torch.float32)
    references = [model.reference(model.ids(text)) for text in M3_TEXTS]

    def expected(_: Runner) -> Results:
        columns = read_json(folder / "config.json")["vocab_size"]
        weights = np.zeros((len(M3_TEXTS), columns), dtype=np.float32)
        for row, (_dense, lexical, _vectors) in zip(weights, references, strict=True):
            row[list(lexical)] = list(lexical.values())
        return [np.stack([one[0] for one in references]), weights, *(one[2] for one in references)]

    return Built(folder, Task.EMBED, "the formulas of FlagEmbedding", _run_m3, expected)


def _run_m3(runner: Runner) -> Results:
    """The dense vectors, the weights of tokens [texts, vocabulary], and the vectors of tokens text by text."""
    outputs = OutputKind.DENSE | OutputKind.SPARSE | OutputKind.MULTI_VECTOR
    found = runner.run(PackedBatch.pack(tokens_of(runner.card, M3_TEXTS)), outputs)
    assert found.dense is not None
    assert found.sparse is not None
    assert found.multi_vectors is not None
    weights = rows(list(found.sparse), runner.card.sparse_width)
    return [normalize(found.dense), weights, *found.multi_vectors]


def build_static(kind: Kind, folder: Path) -> Built:
    texts = list(STATIC_TEXTS)
    want: Callable[[], FloatArray]
    if kind.encoder == "model2vec":
        table = Saved(weights=True).save(folder)
        want, loader = lambda: table.encode(texts, max_length=512), "model2vec"
    else:
        model = sentence_transformer(folder, normalize=False)
        want, loader = lambda: model.encode(texts), "sentence-transformers"
    return Built(folder, Task.EMBED, loader, _run_static, lambda _: [want()], is_table=True)


def _run_static(runner: Runner) -> Results:
    return [embed(runner, STATIC_TEXTS)]
