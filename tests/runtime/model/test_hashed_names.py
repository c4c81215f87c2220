"""Names that vector-space identities are hashes of: a renamed class, field or enum value would change every identity.

A new field needs a default that means what was done before, and a line here. What is renamed in the code keeps its old
name in the canonical JSON: give it one there first (`model/canonical.py`), and leave the line here as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import StrEnum
from typing import Any, get_args, get_origin, get_type_hints

from embedserve_runtime.model.canonical import name_canonically, name_field_canonically
from embedserve_runtime.model.card import ModelCard

HASHED_NAMES = {
    "AbsolutePositions": "offset rows",
    "Activation": "gelu gelu_tanh identity relu sigmoid silu tanh",
    "Alibi": "slopes",
    "Attention": (
        "causal disentangled distance_bias head_size heads kv_heads output_bias qk_norm qkv_bias rotary scale "
        "soft_cap value_norm_eps window"
    ),
    "BundledOnnx": "contents hidden inputs origin pad pad_side rows rows_are size weights width",
    "ClassifierHead": "labels layers padding pooling scores template",
    "Convolution": "activation kernel",
    "DenseLayer": "activation bias in_features out_features residual",
    "Disentangled": (
        "buckets content_to_position max_distance norm position_to_content shared_projections span"
    ),
    "Embeddings": "norm norm_first positions scale token_types vocabulary width",
    "Encoder": "embeddings final_norm hidden_size layer_inputs layers max_tokens output",
    "Experts": "activation chosen count intermediate",
    "HeadLayer": "activation divisor in_features norm out_features residual rows",
    "LateInteraction": (
        "document_length document_prompt expansion markers pooled_roles pooling query_length query_prompt "
        "skipped skipped_roles"
    ),
    "Layer": "attention attention_norm convolution inner_norm mlp norm placement",
    "LayerInputs": "activation norm scale width",
    "LexicalHead": "dropped layers vocabulary",
    "LoraAdapter": "replaced scales",
    "Mlp": "activation down_bias gated intermediate up_bias",
    "ModelCard": (
        "adapter body default_prompt encoder head own_max_length pair_types pipeline prompts query ranges "
        "task token_heads tokenizer"
    ),
    "MultiVectorHead": "interaction layers normalize skipped",
    "Norm": "bias eps kind unit_offset",
    "NormKind": "layer rms",
    "NormPlacement": "post pre sandwich",
    "Pipeline": "dense dimensions full_dimensions include_prompt normalize pooling",
    "Pooling": "cls last max mean mean_sqrt weighted_mean",
    "PromptTemplate": "instruction parts plain_parts strips",
    "QkNorm": "norm scope",
    "QkNormScope": "all head",
    "QueryExpansion": "attend fixed length token",
    "QueryRoute": "card default",
    "Ranges": "maximum minimum",
    "RelativeBuckets": "buckets max_distance",
    "Rotary": "inverse_frequencies scaling",
    "ScoreFunction": "identity sigmoid softmax",
    "SparseHead": "layers log_twice pooling",
    "SparsePooling": "max sum",
    "StaticTable": "dimensions max_length normalize tensor token_characters unknown vocabulary",
    "Task": "classify embed multi_vector rerank sparse",
    "TokenPooling": "factor normalize protected",
    "TokenizerSettings": "adds_special_tokens digest lowercase splits_special_tokens truncation_side",
    "Value": "element name shape",
    "WordTable": "max_length vocabulary",
}


def list_hashed_types(kind: Any, seen: set[type]) -> Iterator[type]:
    """List the dataclasses and enums that values of a type are made of, each once."""
    if get_origin(kind) is not None:
        for part in get_args(kind):
            yield from list_hashed_types(part, seen)
    elif isinstance(kind, type) and kind not in seen and (is_dataclass(kind) or issubclass(kind, StrEnum)):
        seen.add(kind)
        yield kind
        if is_dataclass(kind):
            hints = get_type_hints(kind, vars(sys.modules[kind.__module__]))
            for name in list_hashed_fields(kind):
                yield from list_hashed_types(hints[name], seen)


def list_hashed_fields(kind: type) -> list[str]:
    return [field.name for field in fields(kind) if field.metadata.get("hashed", True)]


def list_canonical_names(kind: type) -> list[str]:
    if issubclass(kind, StrEnum):
        return [member.value for member in kind]
    return [name_field_canonically(kind, name) for name in list_hashed_fields(kind)]


def test_no_name_that_identities_are_hashes_of_has_changed() -> None:
    names = {
        name_canonically(kind): " ".join(sorted(list_canonical_names(kind)))
        for kind in list_hashed_types(ModelCard, set())
    }
    assert names == HASHED_NAMES
