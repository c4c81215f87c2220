"""Classifiers of every family on every engine against transformers, and scores against its pipeline's functions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from embedserve_runtime.heads.classification import scores
from embedserve_runtime.model.heads.description import ScoreFunction, Task
from tests.runtime.engines.engines import ENGINES
from tests.runtime.heads.head_cases import CLASSIFIERS, HeadCase
from tests.runtime.heads.head_runner import greatest, logits_of, runner_of, sequences
from tests.support.tolerances import FP32_MAX_ABS_DIFF, NEIGHBOUR_MAX_ABS_DIFF


@pytest.mark.parametrize("case", CLASSIFIERS, ids=lambda case: case.name)
def test_logits_equal_those_of_transformers_on_every_engine_whatever_else_is_in_the_batch(
    tmp_path: Path, case: HeadCase
) -> None:
    model = case.build(tmp_path)
    texts = sequences()
    with torch.no_grad():
        want = np.concatenate([model(torch.from_numpy(ids.astype(np.int64))[None]).logits for ids in texts])
    ran = 0
    for engine in ENGINES:
        runner = runner_of(tmp_path, engine)
        if runner is None:
            continue
        ran += 1
        got = logits_of(runner, texts)
        assert (got.dtype.name, got.shape) == ("float32", (len(texts), model.config.num_labels))
        assert greatest(got - want) <= FP32_MAX_ABS_DIFF
        alone = np.concatenate([logits_of(runner, [ids]) for ids in texts])
        assert greatest(got - alone) <= NEIGHBOUR_MAX_ABS_DIFF
        assert runner.card.task is (Task.RERANK if model.config.num_labels == 1 else Task.CLASSIFY)
    assert ran


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
    np.testing.assert_allclose(scores(logits, function), reference(torch.from_numpy(logits)), atol=1e-6)
