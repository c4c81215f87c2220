"""Models as transformers runs them: what is exported where no family of ours fits, and what the export must equal."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import transformers

from embedserve_runtime.errors import ModelInvalid, UnsupportedArchitecture
from embedserve_runtime.forward.arrays import FloatArray, Int32Array
from embedserve_runtime.model.onnx_outputs import HIDDEN, LOGITS

OPSET = 20
# Lengths of the batch that is traced: neither 0 nor 1, which the tracer would take for constants.
TRACED = (2, 7)


class TransformersModel:
    """A model of the transformers library, float32, on the CPU.

    output: what is read from it.
    """

    def __init__(
        self, model: transformers.PreTrainedModel, output: Literal["last_hidden_state", "logits"]
    ) -> None:
        self.output: Literal["last_hidden_state", "logits"] = output
        self._model = model.eval()
        types = getattr(model.config, "type_vocab_size", None) or 1
        takes = inspect.signature(model.forward).parameters
        self._inputs = (
            "input_ids",
            "attention_mask",
            *(["token_type_ids"] if types > 1 and "token_type_ids" in takes else []),
        )

    @classmethod
    def open(cls, folder: Path) -> TransformersModel:
        """Load the model with a class of transformers itself: no code of the folder is run. Raises
        UnsupportedArchitecture, and ModelInvalid where weights are missing."""
        try:
            config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
            classifies = any(
                name.endswith("ForSequenceClassification") for name in config.architectures or []
            )
            kind = transformers.AutoModelForSequenceClassification if classifies else transformers.AutoModel
            model, loading_info = kind.from_pretrained(
                folder,
                trust_remote_code=False,
                local_files_only=True,
                dtype=torch.float32,
                attn_implementation="eager",
                output_loading_info=True,
            )
        except (ValueError, KeyError, ImportError, OSError) as error:
            raise UnsupportedArchitecture(f"transformers does not load {folder}: {error}") from error
        # Hidden states do not come from the pooler, which not every checkpoint has.
        missing = sorted(name for name in loading_info["missing_keys"] if classifies or "pooler" not in name)
        if missing:
            raise ModelInvalid(
                f"the checkpoint lacks {len(missing)} tensors of {type(model).__name__}: {', '.join(missing[:5])}"
            )
        return cls(model, LOGITS if classifies else HIDDEN)

    def run(self, ids: Int32Array) -> FloatArray:
        """Run one text without padding and return hidden states (tokens, size), or logits (1, labels)."""
        feeds = self._build_feeds(torch.tensor(ids.astype(np.int64))[None])
        with torch.inference_mode():
            output = self._model(**feeds)[self.output]
        rows: FloatArray = (output if self.output == LOGITS else output[0]).numpy()
        return rows

    def export(self, file: Path) -> None:
        """Write it as ONNX, with large weights in a file of their own. Raises UnsupportedArchitecture."""
        ids = torch.ones(TRACED, dtype=torch.int64)
        mask = ids.clone()
        mask[1, TRACED[1] // 2 :] = 0
        feeds = self._build_feeds(ids, mask)
        varying = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of other libraries about each other
                program = torch.onnx.export(
                    _Positional(self._model, self._inputs, self.output),
                    tuple(feeds.values()),
                    dynamo=True,
                    dynamic_shapes={"feeds": (varying,) * len(feeds)},
                    input_names=list(self._inputs),
                    output_names=[self.output],
                    opset_version=OPSET,
                    verbose=False,
                )
                assert program is not None, "with dynamo it gives a program"
                program.save(str(file), external_data=True)
        except Exception as error:  # whatever the exporter makes of a foreign model
            first: BaseException = error
            while first.__cause__ is not None:
                first = first.__cause__
            raise UnsupportedArchitecture(
                f"torch does not export {type(self._model).__name__}: {type(first).__name__}: {str(first)[:500]}"
            ) from error

    def _build_feeds(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> Mapping[str, torch.Tensor]:
        feeds = {"input_ids": ids, "attention_mask": torch.ones_like(ids) if mask is None else mask}
        return {name: feeds.get(name, torch.zeros_like(ids)) for name in self._inputs}


class _Positional(torch.nn.Module):
    """The model with positional inputs, and one output: what the exporter takes."""

    def __init__(self, model: torch.nn.Module, inputs: tuple[str, ...], output: str) -> None:
        super().__init__()
        self.model = model
        self.inputs = inputs
        self.output = output

    def forward(self, *feeds: torch.Tensor) -> Any:
        return self.model(**dict(zip(self.inputs, feeds, strict=True)))[self.output]
