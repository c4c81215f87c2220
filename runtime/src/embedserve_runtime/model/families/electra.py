"""ELECTRA: BERT whose embeddings may be narrower than its layers; their norm stands before the projection.

Source: `ElectraModel` of transformers. The two models that it is trained from leave their heads in the checkpoint.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from pydantic import PositiveInt

from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.families import bert
from embedserve_runtime.model.families.common import map_linear
from embedserve_runtime.model.files import FileModel, ModelFile
from embedserve_runtime.model.parameter_names import ParameterNames

NAMES = ParameterNames(
    prefixes=("", "electra."),
    sources=MappingProxyType(
        {**bert.NAMES.sources, **map_linear("embeddings.projection", "embeddings_project")}
    ),
)


class _Width(FileModel):
    embedding_size: PositiveInt = 128


def describe(file: ModelFile) -> Encoder:
    """Describe the encoder of `file`, a config.json. Raises ModelInvalid or UnsupportedArchitecture."""
    encoder, width = bert.describe(file), file.parse(_Width).embedding_size
    if width != encoder.hidden_size:
        encoder = replace(encoder, embeddings=replace(encoder.embeddings, width=width, norm_first=True))
    return replace(encoder, parameter_names=NAMES)
