"""Classifiers of every family on every engine against transformers, and scores against its pipeline's functions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from embedserve_runtime.heads.classification import apply_score_function
from embedserve_runtime.model.heads.description import ScoreFunction, Task
from tests.runtime.engines.engines import ENGINES
from tests.runtime.heads.head_cases import CLASSIFIERS, HeadCase
from tests.runtime.heads.head_runner import greatest, logits_of, runner_of, sequences
from tests.support.tolerances import FP32_MAX_ABS_DIFF, NEIGHBOUR_MAX_ABS_DIFF


@pytest.mark.parametrize("case", CLASSIFIERS, ids=lambda case: case.name)
def test_logits_equal_those_of_transformers_on_every_engine_whatever_else_is_in_the_batch(
    tmp_path: Path, case: HeadCase
) -> None:
    logits, texts = case.build(tmp_path), sequences()
    want = np.concatenate([logits(ids) for ids in texts])
    for engine in ENGINES:
        runner = runner_of(tmp_path, engine)
        got = logits_of(runner, texts)
        assert (got.dtype.name, got.shape) == ("float32", (len(texts), case.outputs))
        assert greatest(got - want) <= FP32_MAX_ABS_DIFF
        alone = np.concatenate([logits_of(runner, [ids]) for ids in texts])
        assert greatest(got - alone) <= NEIGHBOUR_MAX_ABS_DIFF
        assert runner.card.task is (Task.RERANK if case.outputs == 1 else Task.CLASSIFY)


PADDING = 7
WITH_PADDING: dict[str, list[int]] = {
    "at the end": [5, 6, 8, PADDING],
    "several at the end": [5, PADDING, 6, PADDING, PADDING],
    "at the start": [PADDING, PADDING, 5, 6],
    "alone": [PADDING],
    "nothing else": [PADDING, PADDING, PADDING],
    "none": [5, 6],
}
DECODER_NAMES = (
    "Qwen3, three labels",
    "Gemma3Text, three labels, bidirectional",
    "Qwen3, biases, no padding",
)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", DECODER_NAMES)
def test_a_decoder_that_reads_a_text_with_the_id_of_padding_reads_the_token_that_transformers_reads(
    tmp_path: Path, name: str, engine: str
) -> None:
    case = next(case for case in CLASSIFIERS if case.name == name)
    pads = "no padding" not in name
    logits = case.build(tmp_path, pad_token_id=PADDING if pads else None)
    texts = [np.array(ids, dtype=np.int32) for ids in WITH_PADDING.values()]
    want = np.concatenate([logits(ids) for ids in texts])
    got = logits_of(runner_of(tmp_path, engine), texts)
    for text, row, want_row in zip(WITH_PADDING, got, want, strict=True):
        assert greatest(row - want_row) <= FP32_MAX_ABS_DIFF, text


@pytest.mark.parametrize(
    ("function", "reference"),
    [
        (ScoreFunction.IDENTITY, torch.nn.Identity()),
        (ScoreFunction.SIGMOID, torch.nn.Sigmoid()),
        (ScoreFunction.SOFTMAX, torch.nn.Softmax(dim=1)),
    ],
)
def test_scores_equal_those_of_torch_also_for_huge_logits(
    function: ScoreFunction, reference: torch.nn.Module
) -> None:
    logits = np.array([[0.5, -3, 2], [200, 100, -200], [1e4, 1e4, 0]], dtype=np.float32)
    np.testing.assert_allclose(
        apply_score_function(logits, function), reference(torch.from_numpy(logits)), atol=1e-6
    )
