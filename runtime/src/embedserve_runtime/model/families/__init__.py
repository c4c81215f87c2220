"""The families: `model_type` of config.json to the function that describes the encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from embedserve_runtime.errors import UnsupportedArchitecture
from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.families import (
    bert,
    deberta,
    distilbert,
    gemma,
    gte,
    jina,
    llama,
    mistral,
    modernbert,
    mpnet,
    nomic,
    qwen,
)
from embedserve_runtime.model.files import FileModel, ModelFile, ModelFiles


def _describe_bert_or_jina(file: ModelFile) -> Encoder:
    """JinaBERT's config.json also says "bert"."""
    return jina.describe(file) if jina.is_jina(file) else bert.describe(file)


FAMILIES: Mapping[str, Callable[[ModelFile], Encoder]] = MappingProxyType(
    {
        "bert": _describe_bert_or_jina,
        "camembert": bert.describe,
        "deberta-v2": deberta.describe,
        "distilbert": distilbert.describe,
        "gemma3_text": gemma.describe,
        "gte": gte.describe,
        "llama": llama.describe,
        "llama_bidirec": llama.describe,
        "mistral": mistral.describe,
        "modernbert": modernbert.describe,
        "mpnet": mpnet.describe,
        "new": gte.describe,
        "nomic_bert": nomic.describe,
        "qwen2": qwen.describe,
        "qwen3": qwen.describe,
        "roberta": bert.describe,
        "xlm-roberta": bert.describe,
    }
)


class _ModelType(FileModel):
    model_type: str = ""
    architectures: list[str] | None = None


def describe(files: ModelFiles) -> Encoder:
    """The encoder of a folder. Raises UnsupportedArchitecture with what was found and what is known."""
    file = files.require("config.json")
    config = file.parse(_ModelType)
    family = FAMILIES.get(config.model_type)
    if family is None:
        architectures = ", ".join(config.architectures or []) or "none named"
        raise UnsupportedArchitecture(
            f"{file.path}: model_type {config.model_type!r} (architectures: {architectures}) is not supported; "
            f"supported: {', '.join(sorted(FAMILIES))}"
        )
    return family(file)
