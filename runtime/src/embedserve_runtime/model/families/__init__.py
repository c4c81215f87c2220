"""The families: `model_type` of config.json to the function that describes the encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from embedserve_runtime.errors import UnsupportedArchitecture, UnsupportedInputs
from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.families import (
    albert,
    bert,
    deberta,
    distilbert,
    electra,
    embedding_gemma2,
    gemma,
    gemma3,
    gte,
    jina,
    jina_v3,
    jina_v5,
    llama,
    mistral,
    modernbert,
    mpnet,
    nomic,
    qwen,
    t5,
)
from embedserve_runtime.model.families.refused import OTHER_INPUTS, OTHER_LAYERS
from embedserve_runtime.model.files import ModelFile, ModelFiles
from embedserve_runtime.model.hf_files.transformers import ModelTypeConfig


def _describe_bert_or_jina(file: ModelFile) -> Encoder:
    """Describe an encoder of type "bert", which JinaBERT's config.json also says."""
    return jina.describe(file) if jina.is_jina(file) else bert.describe(file)


def _describe_xlm_roberta(file: ModelFile) -> Encoder:
    """Describe an encoder of type "xlm-roberta", which the code behind jina-embeddings-v3 also says."""
    return jina_v3.describe_flash(file) if jina_v3.is_flash(file) else bert.describe(file)


FAMILIES: Mapping[str, Callable[[ModelFile], Encoder]] = MappingProxyType(
    {
        "albert": albert.describe,
        "bert": _describe_bert_or_jina,
        "bidirectional_pplx_qwen3": qwen.describe,
        "camembert": bert.describe,
        "deberta-v2": deberta.describe,
        "distilbert": distilbert.describe,
        "electra": electra.describe,
        "embedding_gemma2": embedding_gemma2.describe,
        "embedding_gemma2_text": embedding_gemma2.describe_text,
        "eurobert": llama.describe,
        "gemma": gemma.describe,
        "gemma2": gemma.describe_gemma2,
        "gemma3_text": gemma3.describe,
        "gte": gte.describe,
        "jina_embeddings_v3": jina_v3.describe,
        jina_v5.MODEL_TYPE: jina_v5.describe,
        "llama": llama.describe,
        "llama_bidirec": llama.describe,
        "ministral3": mistral.describe_ministral3,
        "mistral": mistral.describe,
        "modernbert": modernbert.describe,
        "mpnet": mpnet.describe,
        "new": gte.describe,
        "nomic_bert": nomic.describe,
        "qwen2": qwen.describe,
        "qwen3": qwen.describe,
        "roberta": bert.describe,
        "t5": t5.describe,
        "xlm-roberta": _describe_xlm_roberta,
    }
)


def describe(files: ModelFiles) -> Encoder:
    """Describe the encoder of a folder. Raises UnsupportedArchitecture with what was found and what is known,
    UnsupportedInputs for a model that reads more than text."""
    file = files.require("config.json")
    config = file.parse(ModelTypeConfig)
    family = FAMILIES.get(config.model_type)
    if not config.model_type and jina_v3.is_flash(file):
        family = jina_v3.describe_flash  # the first files of jina-embeddings-v3 have no model_type
    if config.model_type in OTHER_INPUTS:
        raise UnsupportedInputs(
            f"{file.path}: model_type {config.model_type!r} is not supported: {OTHER_INPUTS[config.model_type]}"
        )
    if config.model_type in OTHER_LAYERS:
        raise UnsupportedArchitecture(
            f"{file.path}: model_type {config.model_type!r} is not supported: {OTHER_LAYERS[config.model_type]}"
        )
    if family is None:
        architectures = ", ".join(config.architectures or []) or "none named"
        raise UnsupportedArchitecture(
            f"{file.path}: model_type {config.model_type!r} (architectures: {architectures}) is not supported; "
            f"supported: {', '.join(sorted(FAMILIES))}"
        )
    return family(file)
