"""Rows of JinaBERT, version 2. The reference is a forward pass in plain torch, written here from public descriptions.

It runs one sequence at a time and shares no code with the engines or the families. It is not upstream's own code:
jinaai/jina-bert-implementation and jinaai/jina-bert-v2-qk-post-norm are code on a hub, and no package was found that
has it and could be pinned (transformers has version 3 only, which is another architecture; vLLM has a port, and takes
gigabytes). By reading, the rows of `code` agree with the port of the second repository that was proposed to
transformers (JinaBertSelfAttention, JinaBertLayer, rebuild_alibi_tensor), and the others with the gated MLP of
MosaicBERT, on which the first is built. Neither was run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from tests.runtime.engines.case import SHORT_LENGTHS, Case, Reference

# As the paper's own code prints them: by hand, so that a wrong rule cannot agree with itself.
SLOPES = {
    1: [2**-8],
    2: [2**-4, 2**-8],
    3: [2**-4, 2**-8, 2**-2],
    6: [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3],
}
HIDDEN, INNER, LAYERS, WORDS = 36, 50, 3, 97
CODE = {"AutoModel": "jinaai/jina-bert-v2-qk-post-norm--modeling_bert.JinaBertModel"}
TEXT = {"AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel"}


def jina(
    name: str, heads: int = 3, code: bool = False, feed_forward: str = "geglu", eps: float = 1e-12
) -> Case:
    build = partial(build_jina, heads=heads, code=code, feed_forward=feed_forward, eps=eps)
    return Case(name, build, SHORT_LENGTHS, range(WORDS))


def build_jina(
    folder: Path, heads: int = 3, code: bool = False, feed_forward: str = "geglu", eps: float = 1e-12
) -> Reference:
    """Save a model and return its hidden states."""
    tensors = _random_tensors(code)
    save_file(tensors, folder / "model.safetensors")
    config = {
        "model_type": "bert",
        "architectures": ["JinaBertForMaskedLM"],
        "auto_map": CODE if code else TEXT,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": heads,
        "intermediate_size": INNER,
        "vocab_size": WORDS,
        "max_position_embeddings": 40,
        "type_vocab_size": 2,
        "layer_norm_eps": eps,
        "position_embedding_type": "alibi",
        "feed_forward_type": feed_forward,
        "hidden_act": "gelu",
    }
    (folder / "config.json").write_text(json.dumps(config))
    act = functional.gelu if feed_forward == "geglu" else functional.relu
    forward = partial(_forward, tensors=tensors, heads=heads, code=code, act=act, eps=eps)

    def hidden_states(batch: PackedBatch) -> FloatArray:
        parts = np.split(batch.token_ids.astype(np.int64), batch.cu_seqlens[1:-1])
        return np.concatenate([forward(torch.from_numpy(part)).numpy() for part in parts])

    return hidden_states


def _random_tensors(code: bool) -> dict[str, Tensor]:
    source = torch.Generator().manual_seed(0)

    def matrix(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source) * 0.3

    def vector(size: int) -> Tensor:
        return torch.randn(size, generator=source) * 0.3 + 0.5

    def norm(name: str) -> dict[str, Tensor]:
        return {f"{name}.weight": vector(HIDDEN), f"{name}.bias": vector(HIDDEN)}

    tensors = {
        "embeddings.word_embeddings.weight": matrix(WORDS, HIDDEN),
        "embeddings.token_type_embeddings.weight": matrix(2, HIDDEN),
        **norm("embeddings.LayerNorm"),
    }
    gated, down = ("up_gated_layer", "down_layer") if code else ("gated_layers", "wo")
    for number in range(LAYERS):
        layer = f"encoder.layer.{number}"
        for product in (
            "attention.self.query",
            "attention.self.key",
            "attention.self.value",
            "attention.output.dense",
        ):
            tensors |= {
                f"{layer}.{product}.weight": matrix(HIDDEN, HIDDEN),
                f"{layer}.{product}.bias": vector(HIDDEN),
            }
        tensors |= norm(f"{layer}.attention.output.LayerNorm")
        tensors[f"{layer}.mlp.{gated}.weight"] = matrix(2 * INNER, HIDDEN)
        tensors |= {
            f"{layer}.mlp.{down}.weight": matrix(HIDDEN, INNER),
            f"{layer}.mlp.{down}.bias": vector(HIDDEN),
        }
        own = ("attention.self.layer_norm_q", "attention.self.layer_norm_k", "layer_norm_1", "layer_norm_2")
        for name in own if code else ("mlp.layernorm",):
            tensors |= norm(f"{layer}.{name}")
    return tensors


@torch.no_grad()
def _forward(
    ids: Tensor,
    *,
    tensors: dict[str, Tensor],
    heads: int,
    code: bool,
    act: Callable[[Tensor], Tensor],
    eps: float,
) -> Tensor:
    def linear(value: Tensor, name: str) -> Tensor:
        return functional.linear(value, tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))

    def norm(value: Tensor, name: str) -> Tensor:
        return functional.layer_norm(
            value, (HIDDEN,), tensors[f"{name}.weight"], tensors[f"{name}.bias"], eps
        )

    def attend(value: Tensor, name: str) -> Tensor:
        query, key = linear(value, f"{name}.query"), linear(value, f"{name}.key")
        if code:
            query, key = norm(query, f"{name}.layer_norm_q"), norm(key, f"{name}.layer_norm_k")
        size = HIDDEN // heads
        split = [
            part.view(-1, heads, size).transpose(0, 1)
            for part in (query, key, linear(value, f"{name}.value"))
        ]
        scores = split[0] @ split[1].transpose(1, 2) / size**0.5
        steps = torch.arange(len(value))
        distance = (steps[:, None] - steps[None, :]).abs()
        scores = scores - torch.tensor(SLOPES[heads])[:, None, None] * distance
        attended: Tensor = scores.softmax(-1) @ split[2]
        return attended.transpose(0, 1).reshape(len(value), HIDDEN)

    word_embeddings = tensors["embeddings.word_embeddings.weight"][ids]
    hidden = norm(
        word_embeddings + tensors["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm"
    )
    for number in range(LAYERS):
        layer = f"encoder.layer.{number}"
        branch = linear(attend(hidden, f"{layer}.attention.self"), f"{layer}.attention.output.dense")
        attended = norm(hidden + branch, f"{layer}.attention.output.LayerNorm")
        if code:
            attended = norm(hidden + attended, f"{layer}.layer_norm_1")
        gated, down = ("up_gated_layer", "down_layer") if code else ("gated_layers", "wo")
        first, second = linear(attended, f"{layer}.mlp.{gated}").chunk(2, dim=-1)
        inner = first * act(second) if code else act(first) * second
        last = "layer_norm_2" if code else "mlp.layernorm"
        hidden = norm(attended + linear(inner, f"{layer}.mlp.{down}"), f"{layer}.{last}")
    return hidden


JINA = (
    jina("jina, three heads"),
    jina("jina, six heads, relu gate", heads=6, feed_forward="reglu"),
    jina("jina, one head, large epsilon", heads=1, eps=0.1),
    jina("jina code, three heads", code=True),
    jina("jina code, two heads, relu gate", heads=2, code=True, feed_forward="reglu"),
    jina("jina code, six heads, large epsilon", heads=6, code=True, eps=0.1),
)
