"""The file of the Transformer module, `sentence_bert_config.json`: what it asks for is done, or stops the start.

Settings of sentence-transformers 6.2 and, by their old names, of all versions before. Those that say how a vector is
computed, and not which one it is, are ignored by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from embedserve_runtime.errors import UnsupportedArchitecture
from embedserve_runtime.model.files import ModelFiles
from embedserve_runtime.model.hf_files.sentence_transformers import (
    ProcessingArguments,
    TokenizerArguments,
    TokenizerCall,
    TransformerConfig,
)

# Today's name and those of old versions, in the order in which sentence-transformers looks for them.
TRANSFORMER_FILES = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)
# `transformer_task` to the output of the model that it takes, and the name under which the module hands that on.
OUTPUT_NAMES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "feature-extraction": ("last_hidden_state", "token_embeddings"),
        "fill-mask": ("logits", "token_embeddings"),
        "sequence-classification": ("logits", "scores"),
        "text-generation": ("logits", "causal_logits"),
    }
)
# Settings of queries and documents, which multi-vector models alone have.
ROLE_KEYS = ("query_length", "document_length", "query_expansion")

_LOADING = frozenset(
    {"trust_remote_code", "revision", "code_revision", "cache_dir", "local_files_only", "force_download"}
)
_COMPUTING = frozenset(
    {
        "attn_implementation",
        "dtype",
        "torch_dtype",
        "unpad_inputs",
        "use_cache",
        "use_flash_attn",
        "use_memory_efficient_attention",
    }
)
_MODEL = _LOADING | _COMPUTING | {"add_pooling_layer", "device_map", "low_cpu_mem_usage"}
_CONFIG = _LOADING | _COMPUTING | {"output_attentions", "output_hidden_states"}
_TOKENIZER = _LOADING | {"padding_side", "use_fast"}
_CALL = frozenset({"logits_to_keep", "pad_to_multiple_of", "padding", "padding_side", "return_tensors"})
# Variables of a chat template that sentence-transformers takes for itself, or gives to the tokenizer.
VARIABLES_KEY = "processing_kwargs.chat_template"
OWN_VARIABLES = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "documents",
        "max_length",
        "messages",
        "pad_to_multiple_of",
        "padding",
        "padding_side",
        "restore_suffix",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tools",
        "truncation",
    }
)
# Values of `transformer_task` of models that judge pairs, which may be put into a chat template.
JUDGES = ("sequence-classification", "text-generation")
# Keys that change no vector, by the object that they stand in, which may have an old and a new name.
HARMLESS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "": frozenset({"cache_dir", "unpad_inputs"}),
        "model_args": _MODEL,
        "model_kwargs": _MODEL,
        "config_args": _CONFIG,
        "config_kwargs": _CONFIG,
        "tokenizer_args": _TOKENIZER,
        "processor_kwargs": _TOKENIZER,
        # Other inputs than texts; and variables of a chat template where texts are put into none.
        "processing_kwargs": frozenset({"audio", "chat_template", "image", "video"}),
        "processing_kwargs.common": _CALL,
        "processing_kwargs.text": _CALL,
    }
)


# Keys that are done, by the object that they stand in.
DONE: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "": frozenset(TransformerConfig.model_fields).union(ROLE_KEYS),
        "tokenizer_args": frozenset(TokenizerArguments.model_fields),
        "processor_kwargs": frozenset(TokenizerArguments.model_fields),
        "processing_kwargs.common": frozenset(TokenizerCall.model_fields),
        "processing_kwargs.text": frozenset(TokenizerCall.model_fields),
    }
)


@dataclass(frozen=True, slots=True)
class TransformerModule:
    """The settings in the file of a Transformer module.

    path: of the file; None without one. task: what it names as `transformer_task`.
    max_length: tokens of a text, special ones included; None where the file does not say it.
    adds_special_tokens: whether those of tokenizer.json are put around a text.
    truncation_side: None where the file does not say it.
    role_keys: those of `ROLE_KEYS` that are set. ignored: settings that change no vector, as `file: key`.
    message_format: how a chat template is given texts ("flat", "structured", "auto"); None where inputs are not put
        into one. template_variables: what it is given besides.
    """

    path: Path | None = None
    task: str | None = None
    max_length: int | None = None
    lowercase: bool = False
    adds_special_tokens: bool = True
    truncation_side: Literal["left", "right"] | None = None
    role_keys: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    message_format: str | None = None
    template_variables: Mapping[str, object] = field(default_factory=dict)


def read_transformer(files: ModelFiles, tasks: Sequence[str]) -> TransformerModule:
    """Read the file in the module's folder. Raises UnsupportedArchitecture or ModelInvalid, naming file and key.

    tasks: the values of `transformer_task` that fit the modules after it.
    """
    file = next(filter(None, map(files.find, TRANSFORMER_FILES)), None)
    if file is None:
        return TransformerModule()
    content, config = file.parse(dict[str, Any]), file.parse(TransformerConfig)
    ignored = [
        *_list_ignored(file.path, content),
        *_list_other_modalities(file.path, config, tasks),
    ]
    message = (config.modality_config or {}).get("message")
    variables = {} if message is None else _read_variables(file.path, config)
    if variables:
        ignored.remove(VARIABLES_KEY)
    processing = config.processing_kwargs or ProcessingArguments()
    text, common = processing.text, processing.common
    tokenizer = config.tokenizer_args or config.processor_kwargs or TokenizerArguments()
    # What is said of all inputs counts more than what is said of texts.
    adds_special_tokens = (
        text.add_special_tokens if common.add_special_tokens is None else common.add_special_tokens
    )
    role_keys = tuple(key for key in ROLE_KEYS if content.get(key) is not None)
    call_length = common.max_length or text.max_length
    if role_keys and call_length is not None:
        raise UnsupportedArchitecture(
            f"{file.path}: max_length of processing_kwargs is not supported beside {role_keys[0]}"
        )
    return TransformerModule(
        path=file.path,
        task=config.transformer_task,
        max_length=call_length or tokenizer.model_max_length or config.max_seq_length,
        lowercase=config.do_lower_case,
        adds_special_tokens=adds_special_tokens is not False,
        truncation_side=tokenizer.truncation_side,
        role_keys=role_keys,
        ignored=tuple(f"{file.path.name}: {key}" for key in ignored),
        message_format=None if message is None else str(message.get("format", "auto")),
        template_variables=variables,
    )


def _read_variables(path: Path, config: TransformerConfig) -> Mapping[str, object]:
    """Return the variables of the chat template. Raises UnsupportedArchitecture."""
    variables = (config.processing_kwargs or ProcessingArguments()).chat_template or {}
    if unknown := sorted(OWN_VARIABLES & variables.keys()):
        raise UnsupportedArchitecture(
            f"{path}: {VARIABLES_KEY}.{unknown[0]} = {variables[unknown[0]]!r} is not supported; take it out if no "
            "score depends on it"
        )
    return variables


def _list_ignored(path: Path, content: Mapping[str, Any], parent: str = "") -> Iterator[str]:
    """Yield the keys of an object that change no vector, and those of the objects in it. Raises UnsupportedArchitecture
    for a key that is not known. parent: the object's own key, with dots between names."""
    for key, value in content.items():
        name = f"{parent}.{key}" if parent else key
        if value is None:
            continue
        if name in HARMLESS:
            if not isinstance(value, Mapping):
                raise UnsupportedArchitecture(f"{path}: {name} must be an object")
            yield from _list_ignored(path, value, name)
        elif key in HARMLESS[parent]:
            yield name
        elif key not in DONE.get(parent, ()):
            raise UnsupportedArchitecture(
                f"{path}: {name} = {value!r} is not supported; take it out if the vectors do not depend on it"
            )


def _list_other_modalities(path: Path, config: TransformerConfig, tasks: Sequence[str]) -> Iterator[str]:
    """Yield what is for other inputs than texts. Raises UnsupportedArchitecture where texts take another way through
    the model than the one that is run."""
    task = config.transformer_task or tasks[0]
    if task not in tasks:
        raise UnsupportedArchitecture(
            f"{path}: transformer_task = {task!r} is not supported with the modules behind it; supported: "
            f"{' or '.join(tasks)}"
        )
    output, name = OUTPUT_NAMES[task]
    if config.module_output_name not in (None, name):
        raise UnsupportedArchitecture(
            f"{path}: module_output_name = {config.module_output_name!r} is not supported; supported: {name}"
        )
    for modality, how in (config.modality_config or {}).items():
        if modality not in ("text", "message"):
            yield f"modality_config.{modality}"
        elif modality == "message" and task not in JUDGES:
            raise UnsupportedArchitecture(
                f"{path}: modality_config.message, texts in a chat template, is supported for rerankers and "
                "classifiers of pairs only"
            )
        elif (how.get("method"), how.get("method_output_name")) != ("forward", output):
            raise UnsupportedArchitecture(
                f"{path}: modality_config.{modality} = {how!r} is not supported; supported: forward and {output}"
            )
