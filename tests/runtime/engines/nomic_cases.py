"""Rows of NomicBERT's mixture of experts. The reference is a forward pass in plain torch, written here.

It runs one sequence at a time and shares no code with the engines or the families. It is not upstream's own code:
nomic-ai/nomic-bert-2048 is code on a hub, nomic-ai/contrastors is a repository that needs flash-attn and megablocks,
and transformers has NomicBERT without experts only (rows of it: `bert_like_cases.py`). Once, by hand, `mix` was run
against `MoEBlock` of contrastors (src/contrastors/layers/moe.py at commit 613ddfd) on the numbers of experts below:
they differed by 2.4e-7 at most. And the census's folder of this kind was run as a whole, pooled and normalized: by
`NomicBertModel` of contrastors (src/contrastors/models/huggingface) with that block in every second layer, and with no
probability of dropout in its config, since that code drops attention weights outside training, too. Both engines
differed from it by 1.2e-7 at most, and by 7.5e-8 from the model without experts.
"""

from __future__ import annotations

import json
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

HIDDEN, INNER, LAYERS, WORDS, EPS, BASE = 36, 50, 4, 97, 1e-5, 100.0


def mixture(name: str, heads: int = 3, experts: int = 5, chosen: int = 2, every: int = 2) -> Case:
    build = partial(build_mixture, heads=heads, experts=experts, chosen=chosen, every=every)
    return Case(name, build, SHORT_LENGTHS, range(WORDS))


def _config(heads: int, experts: int, chosen: int, every: int) -> dict[str, object]:
    """The keys of the public model's config.json that describe its encoder."""
    return {
        "model_type": "nomic_bert",
        "architectures": ["NomicBertModel"],
        "n_embd": HIDDEN,
        "n_head": heads,
        "n_layer": LAYERS,
        "n_inner": INNER,
        "n_positions": 40,
        "max_trained_positions": 40,
        "vocab_size": WORDS,
        "type_vocab_size": 1,
        "pad_vocab_size_multiple": 1,
        "activation_function": "gelu",
        "layer_norm_epsilon": EPS,
        "qkv_proj_bias": True,
        "mlp_fc1_bias": True,
        "mlp_fc2_bias": True,
        "rotary_emb_base": BASE,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "rotary_scaling_factor": None,
        "prenorm": False,
        "causal": False,
        "scale_attn_weights": True,
        "num_experts": experts,
        "moe_top_k": chosen,
        "moe_every_n_layers": every,
        "moe_normalize_expert_weights": False,
        "expert_choice_router": False,
        "num_shared_experts": 0,
        "ffn_div": 1,
        "moe_impl": "megablocks",
    }


def build_mixture(
    folder: Path, heads: int = 3, experts: int = 5, chosen: int = 2, every: int = 2
) -> Reference:
    """Save a model and return its hidden states."""
    mixed = [number % every == 1 for number in range(LAYERS)]
    tensors = _random_tensors(experts, mixed)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(_config(heads, experts, chosen, every)))

    def hidden_states(batch: PackedBatch) -> FloatArray:
        parts = np.split(batch.token_ids.astype(np.int64), batch.cu_seqlens[1:-1])
        return np.concatenate(
            [_forward(torch.from_numpy(part), tensors, heads, experts, chosen).numpy() for part in parts]
        )

    return hidden_states


def _random_tensors(experts: int, mixed: list[bool]) -> dict[str, Tensor]:
    source = torch.Generator().manual_seed(0)

    def matrix(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source) * 0.3

    def vector(size: int) -> Tensor:
        return torch.randn(size, generator=source) * 0.3 + 0.5

    def linear(name: str, out: int, into: int) -> dict[str, Tensor]:
        return {f"{name}.weight": matrix(out, into), f"{name}.bias": vector(out)}

    def norm(name: str) -> dict[str, Tensor]:
        return {f"{name}.weight": vector(HIDDEN), f"{name}.bias": vector(HIDDEN)}

    tensors = {
        "embeddings.word_embeddings.weight": matrix(WORDS, HIDDEN),
        "embeddings.token_type_embeddings.weight": matrix(1, HIDDEN),
        **norm("emb_ln"),
    }
    for number, is_mixture in enumerate(mixed):
        layer = f"encoder.layers.{number}"
        tensors |= linear(f"{layer}.attn.Wqkv", 3 * HIDDEN, HIDDEN)
        tensors |= linear(f"{layer}.attn.out_proj", HIDDEN, HIDDEN)
        tensors |= norm(f"{layer}.norm1") | norm(f"{layer}.norm2")
        if is_mixture:
            tensors[f"{layer}.mlp.router.layer.weight"] = matrix(experts, HIDDEN)
            tensors[f"{layer}.mlp.experts.mlp.w1"] = matrix(experts * INNER, HIDDEN)
            tensors[f"{layer}.mlp.experts.mlp.w2"] = matrix(experts * INNER, HIDDEN)
            tensors[f"{layer}.mlp.experts.bias"] = vector(HIDDEN)
        else:
            tensors |= linear(f"{layer}.mlp.fc1", INNER, HIDDEN) | linear(f"{layer}.mlp.fc2", HIDDEN, INNER)
    return tensors


@torch.no_grad()
def _forward(ids: Tensor, tensors: dict[str, Tensor], heads: int, experts: int, chosen: int) -> Tensor:
    def linear(value: Tensor, name: str) -> Tensor:
        return functional.linear(value, tensors[f"{name}.weight"], tensors[f"{name}.bias"])

    def norm(value: Tensor, name: str) -> Tensor:
        return functional.layer_norm(
            value, (HIDDEN,), tensors[f"{name}.weight"], tensors[f"{name}.bias"], EPS
        )

    def mix(value: Tensor, name: str) -> Tensor:
        """Every token through every expert; what was not chosen weighs nothing."""
        shares = (value @ tensors[f"{name}.router.layer.weight"].T).softmax(-1)
        smallest = shares.sort(descending=True).values[:, chosen - 1 : chosen]
        weights = torch.where(shares >= smallest, shares, 0)
        up, down = (
            tensors[f"{name}.experts.mlp.{part}"].view(experts, INNER, HIDDEN) for part in ("w1", "w2")
        )
        inner = functional.gelu(torch.einsum("th,eih->tei", value, up))
        return torch.einsum("te,tei,eih->th", weights, inner, down) + tensors[f"{name}.experts.bias"]

    hidden = tensors["embeddings.word_embeddings.weight"][ids]
    hidden = norm(hidden + tensors["embeddings.token_type_embeddings.weight"][0], "emb_ln")
    for number in range(LAYERS):
        layer = f"encoder.layers.{number}"
        query, key, value = (
            linear(hidden, f"{layer}.attn.Wqkv").view(len(ids), 3, heads, -1).permute(1, 2, 0, 3)
        )
        scores = _turned(query) @ _turned(key).transpose(1, 2) / query.shape[-1] ** 0.5
        attended = (scores.softmax(-1) @ value).transpose(0, 1).reshape(len(ids), HIDDEN)
        hidden = norm(hidden + linear(attended, f"{layer}.attn.out_proj"), f"{layer}.norm1")
        mlp = f"{layer}.mlp"
        if f"{mlp}.router.layer.weight" in tensors:
            branch = mix(hidden, mlp)
        else:
            branch = linear(functional.gelu(linear(hidden, f"{mlp}.fc1")), f"{mlp}.fc2")
        hidden = norm(hidden + branch, f"{layer}.norm2")
    return hidden


def _turned(heads: Tensor) -> Tensor:
    """(heads, tokens, size): dimension i as real, i + size / 2 as imaginary part, turned by position."""
    half = heads.shape[-1] // 2
    angles = torch.arange(heads.shape[1])[:, None] * BASE ** (-torch.arange(half) / half)
    turned = torch.complex(heads[..., :half], heads[..., half:]) * torch.exp(1j * angles)
    return torch.cat((turned.real, turned.imag), dim=-1)


NOMIC_MIXTURES = (
    mixture("nomic v2, two of five experts"),
    mixture("nomic v2, one of eight experts, nine heads", experts=8, chosen=1, heads=9),
    mixture("nomic v2, all of three experts, every third layer", experts=3, chosen=3, every=3),
)
