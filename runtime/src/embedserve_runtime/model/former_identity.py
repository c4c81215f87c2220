"""The vector-space identity as releases before `vs2-` computed it. Clients that stored one may name it for one release
more; then this file goes, with `ModelCard.former_vector_space`.

`vs1-` left out much that decides a vector. So it is not computed for a model that those releases did not run as it is
run now.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict

from embedserve_runtime.model.bundled_onnx import BundledOnnx
from embedserve_runtime.model.card import Backbone, ModelCard
from embedserve_runtime.model.heads.description import (
    ClassifierHead,
    Head,
    LateInteraction,
    LexicalHead,
    MultiVectorHead,
    SparseHead,
    TokenHead,
)
from embedserve_runtime.model.identity import TensorDigests
from embedserve_runtime.model.sparse_static import SparseStaticTable
from embedserve_runtime.model.static import StaticTable


def compute_former_identity(
    card: ModelCard, documents: TensorDigests, queries: TensorDigests | None = None
) -> str | None:
    """Return the identity that former releases gave the model; None where they ran it in another way. The arguments are
    those of `identify_vector_space`."""
    if card.adapter is not None or (card.backbone is None and not card.tokenizer.adds_special_tokens):
        return None  # LoRA adapters and `add_special_tokens` of sentence_bert_config.json were ignored
    if card.tokenizer.splits_special_tokens:
        return None  # as was `split_special_tokens`
    if isinstance(card.backbone, BundledOnnx) and card.backbone.pooled is not None and card.pipeline.dense:
        return None  # Dense modules after the vectors of an ONNX file were ignored
    document_identity = _identify_route(card, documents)
    if card.query is None or queries is None:
        return document_identity
    return _hash({"documents": document_identity, "queries": _identify_route(card.query.card, queries)})


def _identify_route(card: ModelCard, digests: TensorDigests) -> str:
    pipeline = card.pipeline
    description: dict[str, object] = {
        "weights": digests.encoder,
        "dense": [
            {
                "activation": layer.activation,
                "bias": layer.bias,
                "in": layer.in_features,
                "out": layer.out_features,
                **({"residual": True} if layer.residual else {}),
            }
            for layer in pipeline.dense
        ],
        "dense_weights": digests.dense,
        "tokenizer": card.tokenizer.digest,
        "lowercase": card.tokenizer.lowercase,
        "pooling": pipeline.pooling_name,
        "normalize": pipeline.normalize,
        "dimensions": pipeline.dimensions,
        "prompt": card.default_prompt_text,
    }
    if not pipeline.include_prompt:
        description["include_prompt"] = False
    if card.backbone is not None:
        return _hash({**description, "head": _describe_backbone(card.backbone), "head_weights": {}})
    if card.head is not None:
        description["head"] = _describe_head(card.head)
        description["head_weights"] = digests.head
    if card.token_heads:
        description["token_heads"] = [
            {**_describe_head(head), "weights": head_digests}
            for head, head_digests in zip(card.token_heads, digests.token_heads, strict=True)
        ]
    return _hash(description)


def _describe_backbone(backbone: Backbone) -> dict[str, object]:
    match backbone:
        case StaticTable():
            return {"kind": "static", "unknown": backbone.unknown}
        case SparseStaticTable():
            return {"kind": "word weights"}
        case BundledOnnx():
            return {
                "kind": "onnx",
                "files": backbone.origin or backbone.contents,
                "output": backbone.pooled or backbone.hidden,
                **({} if backbone.weights is None else {"weights": backbone.weights}),
            }


def _describe_head(head: Head | TokenHead) -> dict[str, object]:
    layers = [
        {
            "in": layer.in_features,
            "out": layer.out_features,
            "activation": layer.activation,
            "norm": None if layer.norm is None else {"kind": layer.norm.kind, "eps": layer.norm.eps},
            **({"residual": True} if layer.residual else {}),
        }
        for layer in head.layers
    ]
    match head:
        case ClassifierHead():
            return {"kind": "classifier", "pooling": head.pooling, "layers": layers}
        case SparseHead():
            return {"kind": "sparse", "pooling": head.pooling, "log_twice": head.log_twice, "layers": layers}
        case LexicalHead():
            return {"kind": "lexical", "dropped": sorted(head.dropped), "layers": layers}
        case MultiVectorHead():
            kind = {"kind": "multi-vector", "normalize": head.normalize, "skipped": head.skipped}
            late = head.interaction
            return {**kind, "layers": layers, **({} if late is None else {"late": _describe_late(late)})}


def _describe_late(late: LateInteraction) -> dict[str, object]:
    expansion, pooling = late.expansion, late.pooling
    return {
        "prompts": {"query": late.query_prompt, "document": late.document_prompt},
        "expansion": None if expansion is None else asdict(expansion),
        "skipped": sorted(late.skipped) if late.skipped_roles else [],
        "skipped_roles": sorted(late.skipped_roles) if late.skipped else [],
        "pooling": None if pooling is None else {**asdict(pooling), "roles": sorted(late.pooled_roles)},
    }


def _hash(description: Mapping[str, object]) -> str:
    text = json.dumps(description, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"vs1-{hashlib.sha256(text.encode()).hexdigest()[:20]}"
