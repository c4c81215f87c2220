"""The files of a folder as transformers 4 and sentence-transformers 5.3 wrote them, as most repositories still have
them: keys of config.json, classes of tokenizers, types of modules."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.census.layouts import read_json, write_json

# Version 5 saves a class of its own for a tokenizer that is not of a model's class, which version 4 does not know.
FAST_TOKENIZER = "PreTrainedTokenizerFast"
# Types of models whose tokenizers give them token types.
TOKEN_TYPES = ("bert", "deberta-v2", "electra")
# By the end of a module's type in sentence-transformers 6.
MODULE_TYPES: Mapping[str, str] = {
    "Transformer": "sentence_transformers.models.Transformer",
    "Pooling": "sentence_transformers.models.Pooling",
    "Dense": "sentence_transformers.models.Dense",
    "Normalize": "sentence_transformers.models.Normalize",
    "Router": "sentence_transformers.models.Router",
    "SpladePooling": "sentence_transformers.sparse_encoder.models.SpladePooling",
    "SparseStaticEmbedding": "sentence_transformers.sparse_encoder.models.SparseStaticEmbedding",
    "StaticEmbedding": "sentence_transformers.models.StaticEmbedding",
}
MASKED_LM = "sentence_transformers.sparse_encoder.models.MLMTransformer"
# Names of the bases of rotary positions where a model has two kinds of layers: for global ones and for local ones.
TWO_BASES: Mapping[str, tuple[str, str]] = {
    "modernbert": ("global_rope_theta", "local_rope_theta"),
    "gemma3_text": ("rope_theta", "rope_local_base_freq"),
}


def write_for_version_4(source: Path, target: Path) -> Path:
    """Copy a folder with its files in the older layout. Returns the copy."""
    shutil.copytree(source, target)
    for path in target.rglob("*.json"):
        convert = CONVERSIONS.get(path.name)
        if convert is not None:
            write_json(path, convert(source / path.relative_to(target).parent, read_json(path)))
    return target


def _convert_config(_: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Of a model; the files of that name in the folders of modules have neither key."""
    converted = dict(config)
    names = TWO_BASES.get(config.get("model_type", ""))
    if "dtype" in converted:
        converted |= {"torch_dtype": converted.pop("dtype"), "transformers_version": "4.57.6"}
    if "pooling_strategy" in converted:
        converted["word_embedding_dimension"] = converted.pop("embedding_dimension", None)
    rotary = converted.get("rope_parameters")
    if rotary is None or ("full_attention" in rotary and names is None):
        return converted
    del converted["rope_parameters"]
    if names is None:
        scaling = {key: value for key, value in rotary.items() if key != "rope_theta"}
        has_scaling = rotary["rope_type"] != "default"
        return converted | {
            "rope_theta": rotary["rope_theta"],
            "rope_scaling": scaling if has_scaling else None,
        }
    bases = (rotary[kind]["rope_theta"] for kind in ("full_attention", "sliding_attention"))
    return converted | dict(zip(names, bases, strict=True))


def _convert_tokenizer(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Version 4 has token types where the file is silent, and models without them fail with them."""
    converted = dict(config)
    if "extra_special_tokens" in converted:
        converted["additional_special_tokens"] = converted.pop("extra_special_tokens")
    if config.get("tokenizer_class") == "TokenizersBackend":
        converted["tokenizer_class"] = FAST_TOKENIZER
    model = folder / "config.json"
    if model.exists() and read_json(model).get("model_type") not in TOKEN_TYPES:
        converted["model_input_names"] = ["input_ids", "attention_mask"]
    return converted


def _convert_modules(folder: Path, modules: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{**module, "type": _convert_type(folder / module["path"], module["type"])} for module in modules]


def _convert_routes(folder: Path, routes: Mapping[str, Any]) -> dict[str, Any]:
    types = {name: _convert_type(folder / name, type_) for name, type_ in routes["types"].items()}
    known = ("default_route", "allow_empty_key")
    parameters = {name: routes["parameters"][name] for name in known}
    return {**routes, "types": types, "parameters": parameters}


def _convert_type(folder: Path, type_: str) -> str:
    """folder: of the module."""
    name = type_.rsplit(".", 1)[1]
    settings = folder / "sentence_bert_config.json"
    if name == "Transformer" and settings.exists():
        return MASKED_LM if _is_masked_lm(read_json(settings)) else MODULE_TYPES[name]
    return MODULE_TYPES.get(name, type_) if type_.startswith("sentence_transformers.") else type_


def _convert_settings(_: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The length stays with the tokenizer where the newer file does not have it."""
    return {"max_seq_length": settings.get("max_seq_length"), "do_lower_case": False}


def _is_masked_lm(settings: Mapping[str, Any]) -> bool:
    return settings.get("transformer_task") == "fill-mask"


# By the name of the file; from the folder that it lies in and its content.
CONVERSIONS: Mapping[str, Callable[[Path, Any], Any]] = {
    "config.json": _convert_config,
    "tokenizer_config.json": _convert_tokenizer,
    "modules.json": _convert_modules,
    "router_config.json": _convert_routes,
    "sentence_bert_config.json": _convert_settings,
}
