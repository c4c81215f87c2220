"""Runs an encoder with ONNX Runtime on the CPU."""

from __future__ import annotations

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnxruntime.capi.onnxruntime_pybind11_state import EPFail, Fail, InvalidArgument, RuntimeException

from embedserve_runtime.engines.base import FloatArray, PackedBatch
from embedserve_runtime.engines.grouping import group
from embedserve_runtime.engines.onnx.graph import OUTPUT, build, takes_types
from embedserve_runtime.errors import EngineFailure
from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.checkpoint import Weights

# Scores of one head that a group may have where position terms are added: each of those is an array of all scores,
# and more of them than the processor's cache holds is slower anyway.
MOST_PAIRS = 1_048_576

# What a run can raise; the library's exceptions have no common base.
RUN_ERRORS = (EPFail, Fail, InvalidArgument, RuntimeException)


class OnnxEngine:
    """One ONNX Runtime session. `forward` may be called from any thread, one at a time."""

    def __init__(self, encoder: Encoder, weights: Weights, threads: int) -> None:
        """Build the graph and load it. threads: compute threads of the session, the calling one included."""
        self._hidden_size = encoder.hidden_size
        has_terms = any(layer.attention.disentangled for layer in encoder.layers)
        self._most_pairs = MOST_PAIRS if has_terms else None
        self._token_types = encoder.embeddings.token_types
        self._takes_types = takes_types(encoder)
        model, initializers = build(encoder, weights)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # Spinning threads burn the CPU quota of the container while the engine is idle between batches.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # The session copies (and packs) the arrays while it loads; a test proves that it keeps no pointer into them.
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(value) for value in initializers.values()]
        options.add_external_initializers(list(initializers), values)
        self._session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )

    @property
    def hidden_size(self) -> int:
        return self._hidden_size

    def forward(self, batch: PackedBatch) -> FloatArray:
        """Final hidden states, float32, (tokens, hidden_size). Raises EngineFailure."""
        batch.check_types(self._token_types)
        try:
            (hidden,) = self._session.run([OUTPUT], self._feeds(batch))
        except RUN_ERRORS as error:
            raise EngineFailure(
                f"ONNX Runtime failed on a batch of {batch.tokens} tokens: {error}"
            ) from error
        return hidden  # type: ignore[no-any-return]  # onnxruntime has no types

    def _feeds(self, batch: PackedBatch) -> dict[str, NDArray[np.generic]]:
        groups = group(batch, self._hidden_size, self._most_pairs)
        starts = np.repeat(batch.cu_seqlens[:-1], batch.lengths)
        feeds: dict[str, NDArray[np.generic]] = {
            "token_ids": batch.token_ids.astype(np.int64),
            "positions": np.arange(batch.tokens, dtype=np.int64) - starts,
            "rows": groups.rows,
            "row_starts": groups.row_starts,
            "shapes": groups.shapes,
            "lengths": groups.lengths,
            "length_starts": groups.length_starts,
            "unpad": groups.unpad,
            "groups": np.array(len(groups.shapes), dtype=np.int64),
        }
        if self._takes_types:
            types = batch.token_types
            feeds["token_types"] = (
                np.zeros(batch.tokens, np.int64) if types is None else types.astype(np.int64)
            )
        return feeds
