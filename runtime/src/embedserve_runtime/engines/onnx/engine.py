"""Runs an encoder with ONNX Runtime on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from embedserve_runtime.engines.onnx.arena_usage import ArenaUsage
from embedserve_runtime.engines.onnx.graph import OUTPUT, build, takes_attention_mask, takes_types
from embedserve_runtime.engines.onnx.session import (
    BFLOAT16_PRODUCTS,
    PROVIDERS,
    RUN_ERRORS,
    build_releasing_options,
    build_session_options,
    load_session,
)
from embedserve_runtime.engines.onnx.session_concurrency import ConcurrentSession
from embedserve_runtime.engines.onnx.spool import spool_arrays
from embedserve_runtime.errors import EngineFailure
from embedserve_runtime.forward.arrays import FloatArray, Int32Array
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.engine import EngineDescription, MeasuredParity, MemoryStatus
from embedserve_runtime.forward.grouping import EqualGroups
from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.checkpoint import Weights
from embedserve_runtime.progress import track_work

# With several threads: those of one batch wait for each other after every operator, two batches do not
# (`ConcurrentSession`).
CONCURRENCY = 2


def describe_engine(
    precision: str, threads: int | None, parity: MeasuredParity | None = None, artifact: str | None = None
) -> EngineDescription:
    """Describe an engine of ONNX Runtime. The arguments are those of `EngineDescription`."""
    concurrency = 1 if threads == 1 else CONCURRENCY
    return EngineDescription(
        "onnx",
        "cpu",
        precision,
        parity=parity,
        threads=threads,
        concurrency=concurrency,
        can_overcommit=True,
        artifact=artifact,
    )


class OnnxEngine:
    """Runs an encoder in one session of ONNX Runtime.

    `forward` may be called from any thread, from several at a time.

    session: a session of a graph that `graph.build` wrote.
    """

    # On a CPU the system ends a process that takes too much.
    memory = MemoryStatus()

    def __init__(
        self,
        encoder: Encoder,
        session: onnxruntime.InferenceSession,
        *,
        description: EngineDescription,
    ) -> None:
        self.description = description
        self._concurrent_session = ConcurrentSession(session, description.threads)
        self._arena_usage = ArenaUsage()
        self._releasing_options = build_releasing_options()
        self._hides_tokens = takes_attention_mask([declared.name for declared in session.get_inputs()])
        self._hidden_size = encoder.width
        self._token_types = encoder.embeddings.token_types
        self._takes_types = takes_types(encoder)

    @classmethod
    def build(
        cls, encoder: Encoder, weights: Weights, threads: int, *, has_attention_mask: bool = False
    ) -> OnnxEngine:
        """Write the graph and load it. threads: compute threads of the session, the calling one included."""
        with track_work("reading weights", weights.size, "parameters") as advance:
            model, initializers = build(
                encoder, weights.with_observer(advance), has_attention_mask=has_attention_mask
            )
        options = build_session_options(threads)
        with track_work("preparing ONNX Runtime"), spool_arrays(model, initializers) as folder:
            options.add_session_config_entry(
                "session.model_external_initializers_file_folder_path", str(folder)
            )
            session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=PROVIDERS)
        return cls(encoder, session, description=describe_engine("float32", threads))

    @classmethod
    def load(
        cls,
        encoder: Encoder,
        file: Path,
        description: EngineDescription,
    ) -> OnnxEngine:
        """Load a graph of `encoder` from a file. description: of `describe_engine`. Raises ModelInvalid when
        ONNX Runtime cannot."""
        entries = BFLOAT16_PRODUCTS if description.precision == "bfloat16" else {}
        session = load_session(file, description.threads or 0, entries)
        return cls(encoder, session, description=description)

    @property
    def hidden_size(self) -> int:
        return self._hidden_size

    @property
    def padding(self) -> int:
        return 0

    def forward(self, batch: PackedBatch) -> FloatArray:
        """Final hidden states, float32, (tokens, hidden_size). Raises EngineFailure."""
        order = _order_by_length(batch)
        (hidden,) = self._run(batch if order is None else batch.select(order), [OUTPUT])
        if order is None:
            return hidden
        restored = np.empty_like(hidden)
        restored[batch.find_rows(order)] = hidden
        return restored

    def probe(self, batch: PackedBatch, outputs: Sequence[str]) -> list[FloatArray]:
        """Return the outputs of the graph by their names, the tokens by the lengths of their sequences. Raises
        EngineFailure."""
        order = _order_by_length(batch)
        return self._run(batch if order is None else batch.select(order), outputs)

    def _run(self, batch: PackedBatch, outputs: Sequence[str]) -> list[FloatArray]:
        """Run a batch in which sequences of one length stand side by side."""
        batch.check_types(self._token_types)
        if batch.attended_lengths is not None and not self._hides_tokens:
            raise EngineFailure("a batch has tokens that attention must not see, and the graph knows of none")
        longest = int(batch.lengths.max(initial=0))
        is_released = self._arena_usage.is_to_be_released(batch.tokens, longest)
        options = self._releasing_options if is_released else None
        try:
            return self._concurrent_session.run(list(outputs), self._build_feeds(batch), options)
        except RUN_ERRORS as error:
            raise EngineFailure(
                f"ONNX Runtime failed on a batch of {batch.tokens} tokens: {error}"
            ) from error

    def _build_feeds(self, batch: PackedBatch) -> dict[str, NDArray[np.generic]]:
        groups = EqualGroups.build(batch.lengths)
        feeds: dict[str, NDArray[np.generic]] = {
            "token_ids": batch.token_ids.astype(np.int64),
            "positions": _compute_positions(batch),
            "starts": groups.starts,
            "ends": groups.ends,
            "shapes": groups.shapes,
            "groups": np.array(len(groups.shapes), dtype=np.int64),
        }
        if self._hides_tokens:
            lasts = np.cumsum(groups.shapes[:, :1], axis=0)
            attended = batch.lengths if batch.attended_lengths is None else batch.attended_lengths
            feeds |= {"attended": attended, "firsts": lasts - groups.shapes[:, :1], "lasts": lasts}
        if self._takes_types:
            types = batch.token_types
            feeds["token_types"] = (
                np.zeros(batch.tokens, np.int64) if types is None else types.astype(np.int64)
            )
        return feeds


def _order_by_length(batch: PackedBatch) -> Int32Array | None:
    """Return the order of the sequences in which those of one length stand side by side; None where they do."""
    if len(batch.cu_seqlens) == 2:
        return None
    order = np.argsort(batch.lengths, kind="stable").astype(np.int32)
    return None if np.array_equal(order, np.arange(len(order))) else order


def _compute_positions(batch: PackedBatch) -> NDArray[np.int64]:
    """Return the position of each token in its sequence."""
    token_indices = np.arange(batch.tokens, dtype=np.int64)
    return (
        token_indices
        if len(batch.cu_seqlens) == 2
        else token_indices - np.repeat(batch.cu_seqlens[:-1], batch.lengths)
    )
