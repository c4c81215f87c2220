"""Reads a LoRA adapter next to the weights, as peft saves it: what it says, and which of its tensors changes which one.

A weight W becomes W + scale * B A, where A is of shape (rank, in features) and B of (out features, rank); the table of
an embedding becomes W + scale * (B A)^T. scale is alpha / rank, with `use_rslora` alpha / sqrt(rank). What
`modules_to_save` names and trained biases take the place of tensors as a whole.

Source: `LoraConfig`, the LoRA layers and `get_peft_model_state_dict` of peft 0.21.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from embedserve_runtime.errors import ModelFileMissing, ModelInvalid, UnsupportedArchitecture
from embedserve_runtime.model.canonical import NOT_HASHED
from embedserve_runtime.model.checkpoint import INDEX_FILE, PICKLE_FILE, PICKLE_INDEX_FILE, SINGLE_FILE
from embedserve_runtime.model.files import ModelFile, ModelFiles
from embedserve_runtime.model.hf_files.peft import ADAPTER_CONFIG_FILE, LoraConfig
from embedserve_runtime.model.tensors import ModelTensors

PREFIX = "base_model.model."
WEIGHTS_FILES = (SINGLE_FILE, INDEX_FILE, PICKLE_FILE, PICKLE_INDEX_FILE)
# Names of the two factors, after that of their module, of products and of embeddings.
FACTORS = (("lora_A.weight", "lora_B.weight"), ("lora_embedding_A", "lora_embedding_B"))

# Keys that say how the adapter was trained, or what its tensors show.
HARMLESS = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "bias",
        "corda_config",
        "ensure_weight_tying",
        "eva_config",
        "exclude_modules",
        "inference_mode",
        "layers_pattern",
        "layers_to_transform",
        "loftq_config",
        "lora_dropout",
        "lora_ga_config",
        "megatron_core",
        "modules_to_save",
        "peft_version",
        "qalora_group_size",
        "revision",
        "runtime_config",
        "target_modules",
        "task_type",
    }
)
# Ways to begin the training that leave the base model's weights as they are.
PLAIN_STARTS = (None, True, False, "gaussian", "orthogonal", "eva")


_READ = frozenset(LoraConfig.model_fields)


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """A LoRA adapter, as the changes to the tensors of the checkpoint next to it.

    base: the name of the model that it was trained for.
    scales: of the modules with factors, by their names in the adapter's file, without its prefix.
    replaced: names of tensors that take the place of others, in the same form; sorted.
    folder: where its tensors lie, as `ModelTensors` takes it. stack: its number in the stacks of the checkpoint, and
        how many adapters these have; None for an adapter with files of its own.
    """

    base: str = field(metadata=NOT_HASHED)
    scales: Mapping[str, float]
    replaced: tuple[str, ...]
    folder: str = field(default="", metadata=NOT_HASHED)
    stack: tuple[int, int] | None = field(default=None, metadata=NOT_HASHED)


def read_adapter(module_files: ModelFiles, tensors: ModelTensors, folder: str) -> LoraAdapter | None:
    """Read the adapter beside the weights of a module; None without one.

    module_files: the files of the module's folder. folder: its path, as `tensors` takes it.

    Raises ModelFileMissing where the base model's weights are not there, UnsupportedArchitecture or ModelInvalid.
    """
    file = module_files.find(ADAPTER_CONFIG_FILE)
    if file is None:
        return None
    if not any(name in module_files for name in WEIGHTS_FILES):
        base = _parse_config(file).base_model_name_or_path or "its base model"
        raise ModelFileMissing(
            f"{module_files.path} has a LoRA adapter for {base} and no weights of {base} itself. Merge the two, "
            'and serve the folder `merged` with the other files of this one: python -c "from peft import '
            "AutoPeftModelForFeatureExtraction as M; "
            f"M.from_pretrained('{module_files.path}').merge_and_unload().save_pretrained('merged')\""
        )
    return read_adapter_files(module_files, tensors, folder)


def read_adapter_files(adapter_files: ModelFiles, tensors: ModelTensors, folder: str) -> LoraAdapter:
    """Read the adapter in a folder, wherever the weights lie.

    adapter_files: the files of its folder. folder: its path, as `tensors` takes it.

    Raises ModelFileMissing, UnsupportedArchitecture or ModelInvalid.
    """
    file = adapter_files.require(ADAPTER_CONFIG_FILE)
    config = _parse_config(file)
    base = config.base_model_name_or_path or "its base model"
    names = {name.removeprefix(PREFIX) for name in tensors.adapter(folder).names}
    modules = {name: find_module(name) for name in names}
    whole = sorted(name for name, module in modules.items() if module is None)
    odd = next((name for name in whole if "lora_" in name), None)
    if odd is not None:
        raise UnsupportedArchitecture(
            f"{adapter_files.path}: the tensor {odd} of the LoRA adapter is not supported"
        )
    scales = {
        module: _compute_scale(file.path, config, module) for module in modules.values() if module is not None
    }
    return LoraAdapter(base, MappingProxyType(scales), tuple(whole), folder)


def _parse_config(file: ModelFile) -> LoraConfig:
    """Parse adapter_config.json. Raises UnsupportedArchitecture for what is not computed, ModelInvalid."""
    config = file.parse(LoraConfig)
    refused: list[tuple[str, object]] = []
    if config.peft_type != "LORA":
        refused.append(("peft_type", config.peft_type))
    if config.init_lora_weights not in PLAIN_STARTS:
        refused.append(("init_lora_weights", config.init_lora_weights))  # the base's weights were changed too
    for key, value in file.parse(dict[str, Any]).items():
        if value and key not in HARMLESS and key not in _READ:
            refused.append((key, value))
    if refused:
        key, value = refused[0]
        raise UnsupportedArchitecture(
            f"{file.path}: {key} = {value!r} is not supported; merge the adapter into its base model "
            "(`merge_and_unload()` of peft) and save that"
        )
    return config


def find_module(name: str) -> str | None:
    """Return the module of which a tensor is a factor; None for other tensors."""
    for factors in FACTORS:
        for factor in factors:
            if name.endswith(f".{factor}"):
                return name.removesuffix(f".{factor}")
    return None


def _compute_scale(path: Path, config: LoraConfig, module: str) -> float:
    try:
        rank = config.rank_pattern.get(_match_pattern(config.rank_pattern, module), config.r)
        alpha = config.alpha_pattern.get(_match_pattern(config.alpha_pattern, module), config.lora_alpha)
    except re.error as error:
        raise ModelInvalid(
            f"{path}: a key of rank_pattern or alpha_pattern is not a pattern: {error}"
        ) from error
    return alpha / math.sqrt(rank) if config.use_rslora else alpha / rank


def _match_pattern(patterns: Iterable[str], module: str) -> str:
    """Return the pattern that a module's name ends with; the name itself without one."""
    return next((pattern for pattern in patterns if re.fullmatch(rf"(.*\.)?({pattern})", module)), module)
