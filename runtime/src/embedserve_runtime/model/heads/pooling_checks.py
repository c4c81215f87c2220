"""Decides which models are pooled by the mean although nothing says so: encoders, of which sentence-transformers takes
the mean too. All others are refused with the setting that would decide it."""

from __future__ import annotations

from embedserve_runtime.config import ModelSettings
from embedserve_runtime.errors import UnsupportedArchitecture
from embedserve_runtime.model.files import ModelFiles
from embedserve_runtime.model.heads import bge_m3, causal
from embedserve_runtime.model.heads.config import HeadSource
from embedserve_runtime.model.heads.own_pooling import find_own_pooling
from embedserve_runtime.model.modules import ModelLayout
from embedserve_runtime.model.readme import README_FILE, read_readme

# Ends of class names that an encoder is saved under, alone or with what it was trained with.
ENCODERS = ("Model", "ForMaskedLM", "ForPreTraining", "ForTokenClassification")
RANKING = "text-ranking"


def lacks_pooling(layout: ModelLayout, settings: ModelSettings) -> bool:
    """Return whether neither the model's files nor the service say how to pool."""
    return (
        not layout.modules.has_modules_file and layout.modules.pooling is None and settings.pooling == "auto"
    )


def check_pooling(
    files: ModelFiles, source: HeadSource, layout: ModelLayout, settings: ModelSettings
) -> None:
    """Raise UnsupportedArchitecture for a model whose files do not say how its vectors are pooled, unless the mean is a
    reasonable guess.

    files: of the model's folder.
    """
    if not lacks_pooling(layout, settings) or bge_m3.is_bge_m3(files):
        return
    architectures = ", ".join(source.config.architectures or []) or "no architecture"
    advice = f"add {files.path / 'modules.json'} with a Pooling module, or set model.task to embed and model.pooling"
    if settings.task == "auto" and read_readme(files).pipeline == RANKING:
        raise UnsupportedArchitecture(
            f"{files.path / README_FILE}: pipeline_tag {RANKING} says that it is a reranker, and {source.path} has "
            f"{architectures}, of which no way to rank is known; to serve its encoder's vectors {advice}"
        )
    if find_own_pooling(source) is not None:
        return
    is_causal = any(layer.attention.causal for layer in source.encoder.layers)
    is_encoder = not source.config.architectures or source.config.architectures[0].endswith(ENCODERS)
    if (
        is_causal
        or source.config.find_architecture(causal.SUFFIX)
        or not (is_encoder or settings.task == "embed")
    ):
        raise UnsupportedArchitecture(
            f"{source.path}: nothing says what vectors {architectures} gives: there is no modules.json, and the class "
            f"is of {'a causal decoder' if is_causal else 'another task'}; {advice}"
        )
