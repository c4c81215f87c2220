"""Every encoder of the table on every engine, against transformers in float32."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from embedserve_runtime.errors import EngineFailure
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.model import families
from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.folder import read_folder
from tests.runtime.engines.case import Case
from tests.runtime.engines.cases import BERT, CASES
from tests.runtime.engines.engines import ENGINES, engine_of
from tests.support.tolerances import NEIGHBOUR_MAX_ABS_DIFF, TINY_MODEL_MAX_ABS_DIFF

on_every_engine = pytest.mark.parametrize("engine", ENGINES)


@dataclass(frozen=True, slots=True)
class Reference:
    """A row of the table, its model's folder, and transformers' hidden states of its batch."""

    case: Case
    folder: Path
    hidden: FloatArray


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Made once for all engines."""
    case: Case = request.param
    folder = tmp_path_factory.mktemp("model")
    return Reference(case, folder, case.build(folder)(case.batch()))


def lengths_at_which_forms_differ(encoder: Encoder) -> set[int]:
    """One, two, 17, the longest; and for each window the longest text of which it hides nothing, and the next one."""
    windows = {layer.attention.window for layer in encoder.layers}
    edges = {window + step for window in windows if window is not None for step in (1, 2)}
    return {1, 2, 17, encoder.max_positions, *edges}


@on_every_engine
def test_hidden_states_equal_those_of_transformers_and_do_not_depend_on_the_batch(
    reference: Reference, engine: str
) -> None:
    case = reference.case
    assert lengths_at_which_forms_differ(families.describe(read_folder(reference.folder))) <= set(
        case.lengths
    )
    built = engine_of(reference.folder, engine)
    batch = case.batch()
    hidden = built.forward(batch)
    assert hidden.dtype == np.float32
    assert hidden.shape == (batch.tokens, built.hidden_size)
    assert np.abs(hidden - reference.hidden).max() <= TINY_MODEL_MAX_ABS_DIFF
    alone = np.concatenate([built.forward(PackedBatch.pack([sequence])) for sequence in case.sequences()])
    assert np.abs(hidden - alone).max() <= NEIGHBOUR_MAX_ABS_DIFF


@on_every_engine
@pytest.mark.parametrize("prefix", ["", "bert."])
def test_old_norm_names_and_the_prefix_of_a_model_with_a_head_are_understood(
    tmp_path: Path, prefix: str, engine: str
) -> None:
    case = BERT[0]
    case.build(tmp_path)
    want_hidden = engine_of(tmp_path, engine).forward(case.batch())
    file = tmp_path / "model.safetensors"
    renamed = {
        prefix
        + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in load_file(file).items()
    }
    save_file(renamed, file)
    np.testing.assert_array_equal(engine_of(tmp_path, engine).forward(case.batch()), want_hidden)


@on_every_engine
def test_a_failure_of_the_library_is_an_engine_failure(tmp_path: Path, engine: str) -> None:
    BERT[0].build(tmp_path)
    outside_the_vocabulary = PackedBatch.pack([np.array([1, 97], dtype=np.int32)])
    with pytest.raises(EngineFailure, match="batch of 2 tokens"):
        engine_of(tmp_path, engine).forward(outside_the_vocabulary)
