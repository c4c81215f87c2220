"""Model folders with constant weights in the shape of well-known models, for what does not depend on vectors."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.parameter_names import TensorSource
from tests.support.model_shapes import describe_shape
from tests.support.models import minilm_folder

VOCABULARY = 30_522
"""That of MiniLM, whose tokenizer they have."""


def save_random_model(
    name: str,
    folder: Path,
    *,
    layers: int,
    vocabulary: int = VOCABULARY,
    dtype: type[np.floating] = np.float16,
) -> Encoder:
    """Write a model of that shape with so many layers, so many rows for tokens and MiniLM's tokenizer into `folder`."""
    encoder = describe_shape(name, folder, layers=layers, vocabulary=vocabulary)
    shutil.copy(minilm_folder() / "tokenizer.json", folder)
    prefix, sources = encoder.parameter_names.prefixes[0], encoder.parameter_names.sources
    tensors = {}
    for one in encoder.parameters():
        source: TensorSource = sources[one.pattern][0]
        shape = (one.shape[0] * source.parts, *one.shape[1:])
        place = prefix + source.tensor.format(layer=one.layer)
        tensors[place] = np.full(shape[::-1] if source.transpose else shape, 0.01, dtype=dtype)
    save_file(tensors, folder / "model.safetensors")
    return encoder
