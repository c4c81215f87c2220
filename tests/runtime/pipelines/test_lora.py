"""LoRA adapters beside the weights: merged while loading, by the formulas of peft; `tests/oracles` has peft itself."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    ModernBertConfig,
    ModernBertModel,
    NomicBertConfig,
    NomicBertModel,
    Qwen2Config,
    Qwen2Model,
)

from embedserve_runtime.errors import EmbedserveError, ModelFileMissing, ModelInvalid, UnsupportedArchitecture
from tests.runtime.engines.engines import ENGINES
from tests.runtime.heads.head_runner import card_of, dense_of, greatest, logits_of, runner_of, sequences
from tests.runtime.model.test_unread_tensors import pooled
from tests.support.models import tiny
from tests.support.tolerances import FP32_MAX_ABS_DIFF

RANK, ALPHA = 4, 12
PREFIX = "base_model.model."
SHAPE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 30,
    "max_position_embeddings": 64,
}
Tensors = dict[str, NDArray[np.float32]]


def factors(weights: Mapping[str, NDArray[Any]], *modules: str, rank: int = RANK) -> Tensors:
    """Random factors of products, by the modules' names in `weights`."""
    source = np.random.default_rng(5)
    tensors: Tensors = {}
    for module in modules:
        out, inner = weights[f"{module}.weight"].shape
        tensors[f"{module}.lora_A.weight"] = source.normal(size=(rank, inner)).astype(np.float32) * 0.3
        tensors[f"{module}.lora_B.weight"] = source.normal(size=(out, rank)).astype(np.float32) * 0.3
    return tensors


def write_adapter(folder: Path, tensors: Mapping[str, NDArray[Any]], **config: Any) -> None:
    content = {"peft_type": "LORA", "base_model_name_or_path": "acme/base", "r": RANK, "lora_alpha": ALPHA}
    (folder / "adapter_config.json").write_text(json.dumps(content | config))
    save_file(
        {PREFIX + name: tensor for name, tensor in tensors.items()}, folder / "adapter_model.safetensors"
    )


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    tiny(tmp_path, BertModel, BertConfig(**SHAPE))
    return tmp_path


def weights_of(folder: Path) -> dict[str, NDArray[Any]]:
    loaded: dict[str, NDArray[Any]] = load_file(folder / "model.safetensors")
    return loaded


def merged_by_hand(folder: Path, target: Path, changes: Mapping[str, NDArray[Any]]) -> Path:
    """A folder without an adapter, with other weights."""
    target.mkdir()
    for name in ("config.json", "tokenizer.json"):
        if (folder / name).exists():
            (target / name).write_bytes((folder / name).read_bytes())
    save_file(weights_of(folder) | dict(changes), target / "model.safetensors")
    return target


QUERY, MLP = "encoder.layer.0.attention.self.query", "encoder.layer.1.output.dense"


def product(tensors: Tensors, module: str) -> NDArray[np.float32]:
    merged: NDArray[np.float32] = tensors[f"{module}.lora_B.weight"] @ tensors[f"{module}.lora_A.weight"]
    return merged


SCALES: dict[str, tuple[dict[str, Any], float]] = {
    "alpha / rank": ({}, ALPHA / RANK),
    "alpha / sqrt(rank)": ({"use_rslora": True}, ALPHA / math.sqrt(RANK)),
    "an alpha of some modules": ({"alpha_pattern": {"query": 2, "output.dense": 2}}, 2 / RANK),
    "by the first pattern that fits": ({"alpha_pattern": {r".*\.(query|dense)": 3, "query": 9}}, 3 / RANK),
    "the default alpha": ({"lora_alpha": None}, 8 / RANK),
}


@pytest.mark.parametrize(("config", "scale"), SCALES.values(), ids=SCALES)
def test_products_are_added_to_their_weights(
    bert: Path, tmp_path: Path, config: dict[str, Any], scale: float
) -> None:
    weights = weights_of(bert)
    tensors = factors(weights, QUERY, MLP)
    changes = {
        f"{module}.weight": weights[f"{module}.weight"] + scale * product(tensors, module)
        for module in (QUERY, MLP)
    }
    plain = merged_by_hand(bert, tmp_path / "plain", changes)
    write_adapter(bert, tensors, **{key: value for key, value in config.items() if value is not None})
    if config.get("lora_alpha", 1) is None:
        content = json.loads((bert / "adapter_config.json").read_text())
        del content["lora_alpha"]
        (bert / "adapter_config.json").write_text(json.dumps(content))
    for engine in ENGINES:
        want = dense_of(runner_of(plain, engine), sequences())
        assert greatest(dense_of(runner_of(bert, engine), sequences()) - want) <= FP32_MAX_ABS_DIFF


def test_a_rank_of_some_modules(bert: Path, tmp_path: Path) -> None:
    weights = weights_of(bert)
    tensors = factors(weights, QUERY, rank=2) | factors(weights, MLP)
    changes = {
        f"{QUERY}.weight": weights[f"{QUERY}.weight"] + ALPHA / 2 * product(tensors, QUERY),
        f"{MLP}.weight": weights[f"{MLP}.weight"] + ALPHA / RANK * product(tensors, MLP),
    }
    plain = merged_by_hand(bert, tmp_path / "plain", changes)
    write_adapter(bert, tensors, rank_pattern={"query": 2})
    want = dense_of(runner_of(plain, "torch"), sequences())
    assert greatest(dense_of(runner_of(bert, "torch"), sequences()) - want) <= FP32_MAX_ABS_DIFF


def test_tables_biases_and_whole_modules(bert: Path, tmp_path: Path) -> None:
    """The factors of an embedding are transposed; trained biases and whole modules take the place of the base's."""
    source = np.random.default_rng(6)
    table = "embeddings.word_embeddings"
    a, b = (source.normal(size=shape).astype(np.float32) for shape in ((RANK, 97), (24, RANK)))
    own = {
        f"{QUERY}.base_layer.bias": source.normal(size=24).astype(np.float32),
        "embeddings.LayerNorm.weight": source.normal(size=24).astype(np.float32),
        f"{table}.base_layer.weight": source.normal(size=(97, 24)).astype(np.float32),
    }
    changes = {name.replace(".base_layer", ""): tensor for name, tensor in own.items()}
    changes[f"{table}.weight"] = changes[f"{table}.weight"] + ALPHA / RANK * (b @ a).T
    plain = merged_by_hand(bert, tmp_path / "plain", changes)
    write_adapter(
        bert, {f"{table}.lora_embedding_A": a, f"{table}.lora_embedding_B": b, **own}, bias="lora_only"
    )
    want = dense_of(runner_of(plain, "torch"), sequences())
    assert greatest(dense_of(runner_of(bert, "torch"), sequences()) - want) <= FP32_MAX_ABS_DIFF


def test_the_head_of_a_classifier_comes_with_the_adapter(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    tiny(folder, BertForSequenceClassification, BertConfig(**SHAPE, num_labels=1))
    weights = weights_of(folder)
    tensors = factors(weights, "bert.encoder.layer.0.attention.self.value", "bert.pooler.dense")
    whole = {
        "classifier.weight": np.full((1, 24), 0.5, np.float32),
        "classifier.bias": np.ones(1, np.float32),
    }
    card_of(folder)
    changes = {
        f"{module}.weight": weights[f"{module}.weight"] + ALPHA / RANK * product(tensors, module)
        for module in ("bert.encoder.layer.0.attention.self.value", "bert.pooler.dense")
    }
    plain = merged_by_hand(folder, tmp_path / "plain", changes | whole)
    # The base model's own file has no classifier.
    save_file(
        {name: tensor for name, tensor in weights.items() if not name.startswith("classifier.")},
        folder / "model.safetensors",
    )
    write_adapter(folder, tensors | whole, modules_to_save=["classifier"], task_type="SEQ_CLS")
    want = logits_of(runner_of(plain, "torch"), sequences())
    assert greatest(logits_of(runner_of(folder, "torch"), sequences()) - want) <= FP32_MAX_ABS_DIFF


def one_of_each(names: frozenset[str]) -> list[str]:
    """The products of the first layer, and of the last."""
    modules = sorted(name.removesuffix(".weight") for name in names if re.search(r"layers?\.[01]\.", name))
    return [module for module in modules if "norm" not in module.lower() and not module.endswith("bias")]


FAMILIES: dict[str, tuple[Callable[[], Any], Any]] = {
    "a decoder": (lambda: Qwen2Config(**SHAPE, num_key_value_heads=1, pad_token_id=0), Qwen2Model),
    "a fused product of query, key and value": (
        lambda: ModernBertConfig(**SHAPE, pad_token_id=0, layer_types=["full_attention"] * 2),
        ModernBertModel,
    ),
    "other names in memory than in the file": (lambda: NomicBertConfig(**SHAPE), NomicBertModel),
}


@pytest.mark.parametrize(("config", "model"), FAMILIES.values(), ids=FAMILIES)
def test_an_adapter_of_modules_in_memory_fits_the_weights_in_the_file(
    tmp_path: Path, config: Callable[[], Any], model: Any
) -> None:
    """peft names a module as transformers has it in memory, which some families save under other names or fused."""
    folder, plain = tmp_path / "folder", tmp_path / "plain"
    built = tiny(folder, model, config())
    products = {
        name: module.weight.detach().numpy()
        for name, module in built.named_modules()
        if isinstance(module, torch.nn.Linear)
    }
    tensors = factors({f"{name}.weight": weight for name, weight in products.items()}, *products)
    with torch.no_grad():
        for name, module in built.named_modules():
            if isinstance(module, torch.nn.Linear):
                module.weight += torch.from_numpy(ALPHA / RANK * product(tensors, name))
    built.save_pretrained(plain)
    write_adapter(folder, tensors)
    want = dense_of(runner_of(plain, "torch", pooling="mean"), sequences())
    assert (
        greatest(dense_of(runner_of(folder, "torch", pooling="mean"), sequences()) - want)
        <= FP32_MAX_ABS_DIFF
    )


def test_the_adapter_is_part_of_the_identity(bert: Path) -> None:
    spaces = [card_of(bert).vector_space]
    tensors = factors(weights_of(bert), QUERY)
    for changed, config in (
        (tensors, {}),
        (tensors, {"lora_alpha": 5}),
        (tensors | {f"{QUERY}.lora_A.weight": -tensors[f"{QUERY}.lora_A.weight"]}, {}),
        (tensors | {"embeddings.LayerNorm.bias": np.ones(24, np.float32)}, {}),
    ):
        write_adapter(bert, changed, **config)
        spaces.append(card_of(bert).vector_space)
    assert len(set(spaces)) == len(spaces)
    write_adapter(bert, tensors, base_model_name_or_path="acme/base-renamed", lora_dropout=0.3)
    assert card_of(bert).vector_space == spaces[1]


def test_an_adapter_without_its_base_model_is_refused_with_the_command_that_merges_them(bert: Path) -> None:
    write_adapter(bert, factors(weights_of(bert), QUERY))
    for name in ("model.safetensors", "config.json"):
        (bert / name).unlink()
    with pytest.raises(ModelFileMissing) as refused:
        card_of(bert)
    assert "LoRA adapter for acme/base and no weights" in refused.value.message
    assert f"from_pretrained('{bert}').merge_and_unload().save_pretrained('merged')" in refused.value.message


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "DoRA": ({"use_dora": True}, "use_dora = True is not supported; merge the adapter"),
    "another kind of adapter": ({"peft_type": "IA3"}, "peft_type = 'IA3'"),
    "transposed products": ({"fan_in_fan_out": True}, "fan_in_fan_out"),
    "a bias of its own": ({"lora_bias": True}, "lora_bias"),
    "a start that changes the base": ({"init_lora_weights": "pissa"}, "init_lora_weights = 'pissa'"),
    "repeated layers": ({"layer_replication": [[0, 2]]}, "layer_replication"),
    "single tokens": ({"trainable_token_indices": [3]}, "trainable_token_indices"),
    "a key that nobody knows": ({"next_idea": {"depth": 3}}, "next_idea"),
}


@pytest.mark.parametrize(("config", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_merged_stops_the_start(bert: Path, config: dict[str, Any], message: str) -> None:
    write_adapter(bert, factors(weights_of(bert), QUERY), **config)
    with pytest.raises(UnsupportedArchitecture, match=re.escape(message)):
        card_of(bert)


def test_the_configuration_of_an_adapter_beside_merged_weights_stops_the_start_with_what_to_do(
    bert: Path,
) -> None:
    write_adapter(bert, factors(weights_of(bert), QUERY))
    (bert / "adapter_model.safetensors").unlink()
    with pytest.raises(ModelFileMissing, match=r"merged with it already, take adapter_config\.json away"):
        card_of(bert)


def drop(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {key: tensor for key, tensor in tensors.items() if key != name}


def add(name: str, *shape: int) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, name: np.ones(shape, np.float32)}


BROKEN: dict[str, tuple[Callable[[Tensors], Tensors], type[EmbedserveError], str]] = {
    "a factor is missing": (drop(f"{QUERY}.lora_B.weight"), ModelInvalid, "lora_B.weight"),
    "another shape": (add(f"{QUERY}.lora_A.weight", RANK, 7), ModelInvalid, "attention.self.query"),
    "a module that the model does not have": (
        add("encoder.layer.7.output.dense.lora_A.weight", RANK, 30),
        UnsupportedArchitecture,
        "reads the tensor base_model.model.encoder.layer.7.output.dense.lora_A.weight",
    ),
    "DoRA's magnitudes": (
        add(f"{QUERY}.lora_magnitude_vector", 24),
        UnsupportedArchitecture,
        "lora_magnitude_vector",
    ),
    "a head that nobody reads": (
        add("classifier.weight", 2, 24),
        UnsupportedArchitecture,
        "reads the tensor base_model.model.classifier.weight",
    ),
}


@pytest.mark.parametrize(("change", "error", "message"), BROKEN.values(), ids=BROKEN)
def test_tensors_that_do_not_fit_stop_the_start(
    bert: Path, change: Callable[[Tensors], Tensors], error: type[EmbedserveError], message: str
) -> None:
    write_adapter(bert, change(factors(weights_of(bert), QUERY)))
    with pytest.raises(error, match=re.escape(message)):
        runner_of(bert, "torch")


def test_an_adapter_of_an_output_layer_takes_no_part_in_dense_vectors(bert: Path) -> None:
    pooled(bert)
    tensors = factors(weights_of(bert), QUERY)
    write_adapter(bert, tensors)
    want = dense_of(runner_of(bert, "torch"), sequences())
    head: Tensors = {
        "lm_head.lora_A.weight": np.ones((4, 24), np.float32),
        "lm_head.lora_B.weight": np.ones((97, 4), np.float32),
    }
    write_adapter(bert, tensors | head)
    np.testing.assert_array_equal(dense_of(runner_of(bert, "torch"), sequences()), want)
