"""A variant is judged at the lengths that it is served with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from transformers import BertForSequenceClassification, BertModel

from embedserve_runtime.config import ModelSettings, load_config
from embedserve_runtime.config.engine import ParitySettings
from embedserve_runtime.conversion.benchmark import (
    MAX_TOKENS,
    Benchmark,
    ParityLimits,
    tokenize_corpus,
    tokenize_longest,
)
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.outputs import ModelOutput, OutputKind
from embedserve_runtime.loading.runners import load_runner
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.reading import read_card
from embedserve_runtime.parity.corpus import read_parity_texts
from embedserve_runtime.parity.eight_bit import build_sample
from embedserve_runtime.parity.long_texts import choose_lengths
from embedserve_runtime.parity.measures import compare
from tests.runtime.pipelines.folders import bert
from tests.support.distorted_runners import DistortedRunner

POSITIONS = 512


@pytest.mark.parametrize(
    ("longest", "tokens", "want"),
    [
        pytest.param(512, 4096, [256, 512], id="all halves above the corpus's"),
        pytest.param(8192, 4096, [256, 512, 1024, 2048], id="no more than 2,048"),
        pytest.param(2048, 2500, [2048], id="the longest where there is no time for others"),
        pytest.param(128, 4096, [], id="none where the corpus has the greatest length"),
        pytest.param(700, 699, [], id="none where there is no time for one"),
    ],
)
def test_the_lengths_are_the_longest_and_its_halves(longest: int, tokens: int, want: list[int]) -> None:
    assert choose_lengths(longest, MAX_TOKENS, tokens) == want


@pytest.mark.parametrize("kind", [BertModel, BertForSequenceClassification])
def test_texts_have_the_lengths_that_the_model_takes(tmp_path: Path, kind: type[BertModel]) -> None:
    labels = {} if kind is BertModel else {"num_labels": 1}
    card = card_of(bert(tmp_path, kind, max_position_embeddings=POSITIONS, **labels))
    assert [len(text) for text in tokenize_longest(card, read_parity_texts())] == [256, 512]
    assert build_sample(card).lengths.max() == POSITIONS


def card_of(folder: Path) -> ModelCard:
    return read_card(folder, "local", ModelSettings(source=str(folder)))


@dataclass(frozen=True, kw_only=True)
class WorseOnLongTexts(DistortedRunner):
    """A runner whose vectors of texts of more than `tokens` point elsewhere."""

    tokens: int

    def run(self, batch: PackedBatch, outputs: OutputKind) -> ModelOutput:
        dense = self.exact.run(batch, outputs).dense
        assert dense is not None
        return ModelOutput(dense=np.where(batch.lengths[:, None] > self.tokens, dense[:, ::-1], dense))


def test_a_variant_that_is_far_off_on_long_texts_alone_is_below_the_floor(tmp_path: Path) -> None:
    folder = bert(tmp_path, BertModel, max_position_embeddings=POSITIONS)
    flags = {"model": {"source": str(folder), "pooling": "mean"}, "engine": {"kind": "onnx", "threads": 1}}
    runner = load_runner(load_config(flags=flags))
    texts = read_parity_texts()
    benchmark = Benchmark(
        runner.card, tokenize_corpus(runner.card, texts), tokenize_longest(runner.card, texts)
    )
    reference = benchmark.run(runner).outputs
    same = benchmark.run(WorseOnLongTexts(exact=runner, tokens=POSITIONS)).outputs
    assert compare(reference, same).min_cosine == pytest.approx(1)
    for tokens in (MAX_TOKENS, 400):
        outputs = benchmark.run(WorseOnLongTexts(exact=runner, tokens=tokens)).outputs
        assert compare(reference, outputs).min_cosine < 0.9
    limits = ParityLimits(reference, ParitySettings())
    stopped = benchmark.run(WorseOnLongTexts(exact=runner, tokens=MAX_TOKENS), limits)
    assert len(stopped.outputs.vectors) == len(reference.vectors) - 1
