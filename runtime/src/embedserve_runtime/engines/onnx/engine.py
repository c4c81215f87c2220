"""Runs an encoder with ONNX Runtime on the CPU."""

from __future__ import annotations

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from embedserve_runtime.engines.base import EngineFacts, FloatArray, PackedBatch
from embedserve_runtime.engines.grouping import EqualGroups
from embedserve_runtime.engines.onnx.graph import OUTPUT, build, takes_types
from embedserve_runtime.engines.onnx.session import PROVIDERS, RUN_ERRORS, session_options
from embedserve_runtime.engines.onnx.spool import spooled
from embedserve_runtime.errors import EngineFailure
from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.checkpoint import Weights


class OnnxEngine:
    """One ONNX Runtime session. `forward` may be called from any thread, one at a time."""

    facts = EngineFacts("onnx", "cpu", "float32")
    # On a CPU the system ends a process that takes too much.
    out_of_memory = 0

    def __init__(self, encoder: Encoder, weights: Weights, threads: int) -> None:
        """Build the graph and load it. threads: compute threads of the session, the calling one included."""
        self._hidden_size = encoder.hidden_size
        self._token_types = encoder.embeddings.token_types
        self._takes_types = takes_types(encoder)
        model, initializers = build(encoder, weights)
        options = session_options(threads)
        with spooled(model, initializers) as folder:
            options.add_session_config_entry(
                "session.model_external_initializers_file_folder_path", str(folder)
            )
            self._session = onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=PROVIDERS
            )

    @property
    def hidden_size(self) -> int:
        return self._hidden_size

    @property
    def padding(self) -> int:
        return 0

    def forward(self, batch: PackedBatch) -> FloatArray:
        """Final hidden states, float32, (tokens, hidden_size). Raises EngineFailure."""
        batch.check_types(self._token_types)
        by_length = np.argsort(batch.lengths, kind="stable").astype(np.int32)
        if np.array_equal(by_length, np.arange(len(by_length))):
            return self._run(batch)
        ordered = batch.select(by_length)
        hidden = np.empty((batch.tokens, self._hidden_size), dtype=np.float32)
        hidden[batch.rows_of(by_length)] = self._run(ordered)
        return hidden

    def _run(self, batch: PackedBatch) -> FloatArray:
        """batch: sequences of one length side by side."""
        try:
            (hidden,) = self._session.run([OUTPUT], self._feeds(batch))
        except RUN_ERRORS as error:
            raise EngineFailure(
                f"ONNX Runtime failed on a batch of {batch.tokens} tokens: {error}"
            ) from error
        return hidden  # type: ignore[no-any-return]  # onnxruntime has no types

    def _feeds(self, batch: PackedBatch) -> dict[str, NDArray[np.generic]]:
        groups = EqualGroups.of(batch.lengths)
        feeds: dict[str, NDArray[np.generic]] = {
            "token_ids": batch.token_ids.astype(np.int64),
            "positions": np.arange(batch.tokens, dtype=np.int64)
            - np.repeat(batch.cu_seqlens[:-1], batch.lengths),
            "starts": groups.starts,
            "ends": groups.ends,
            "shapes": groups.shapes,
            "groups": np.array(len(groups.shapes), dtype=np.int64),
        }
        if self._takes_types:
            types = batch.token_types
            feeds["token_types"] = (
                np.zeros(batch.tokens, np.int64) if types is None else types.astype(np.int64)
            )
        return feeds
