"""From the layout in which transformers saves a model to the one that a repository has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

WEIGHTS = "model.safetensors"
NEW_CODE = "Alibaba-NLP/new-impl--modeling"


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def write_json(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2))


def edit_config(folder: Path, **changes: object) -> None:
    """Lay keys over config.json; None takes a key away."""
    path = folder / "config.json"
    merged = read_json(path) | changes
    write_json(path, {key: value for key, value in merged.items() if value is not None})


def edit_tensors(
    folder: Path, *, renamed: Mapping[str, str] | None = None, added: Mapping[str, Tensor] | None = None
) -> None:
    """Rename tensors by the beginnings of their names, and add some."""
    tensors = load_file(folder / WEIGHTS)
    for old, new in (renamed or {}).items():
        tensors = {
            new + name.removeprefix(old) if name.startswith(old) else name: tensor
            for name, tensor in tensors.items()
        }
    save_file(tensors | dict(added or {}), folder / WEIGHTS, {"format": "pt"})


def count_tokens(folder: Path) -> int:
    """The rows that the tokenizer beside a model needs."""
    content = read_json(folder / "tokenizer.json")
    words = content["model"]["vocab"]
    count: int = len(words) if isinstance(words, list) else max(words.values()) + 1
    added: list[int] = [token["id"] + 1 for token in content["added_tokens"]]
    return max([count, *added])


def publish_new(folder: Path) -> None:
    """Alibaba's first files: "new", fixed NTK scaling as such, code of its own."""
    config = read_json(folder / "config.json")
    rotary, size = config["rope_parameters"], config["hidden_size"] // config["num_attention_heads"]
    factor = rotary["factor"] ** (size / 2)
    kind = config["architectures"][0].removeprefix("Gte")
    edit_tensors(folder, renamed={"gte.": "new."})
    edit_config(
        folder,
        model_type="new",
        architectures=[f"New{kind}"],
        auto_map={
            "AutoConfig": "Alibaba-NLP/new-impl--configuration.NewConfig",
            "AutoModel": f"{NEW_CODE}.NewModel",
        },
        layer_norm_type="layer_norm",
        logn_attention_scale=False,
        pack_qkv=True,
        position_embedding_type="rope",
        rope_parameters=None,
        rope_scaling={"type": "ntk", "factor": factor},
        rope_theta=rotary["rope_theta"] / factor,
        unpad_inputs=False,
    )


def publish_nomic_bert(folder: Path) -> None:
    """The keys of nomic-bert-2048's own code, GPT-2's words; transformers saves the tensors under its names."""
    config = read_json(folder / "config.json")
    written = {
        "model_type": "nomic_bert",
        "architectures": ["NomicBertModel"],
        "auto_map": {"AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"},
        "n_embd": config["hidden_size"],
        "n_head": config["num_attention_heads"],
        "n_layer": config["num_hidden_layers"],
        "n_inner": config["intermediate_size"],
        "n_positions": config["max_position_embeddings"],
        "max_trained_positions": config["max_position_embeddings"],
        "vocab_size": config["vocab_size"],
        "type_vocab_size": config["type_vocab_size"],
        "activation_function": "swiglu",
        "layer_norm_epsilon": config["layer_norm_eps"],
        **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "prenorm", "causal"), False),
        "rotary_emb_base": config["rope_parameters"]["rope_theta"],
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "rotary_scaling_factor": None,
        "scale_attn_weights": True,
        "pad_vocab_size_multiple": 1,
    }
    write_json(folder / "config.json", written)


def publish_llama_bidirectional(folder: Path) -> None:
    """NVIDIA's class, whose name alone says that attention is both ways."""
    kind = read_json(folder / "config.json")["architectures"][0].removeprefix("Llama")
    edit_config(
        folder,
        model_type="llama_bidirec",
        architectures=[f"LlamaBidirectional{kind}"],
        auto_map={"AutoModel": f"llama_bidirectional_model.LlamaBidirectional{kind}"},
        is_causal=None,
        pooling="avg",
    )


def publish_embedding_gemma2(folder: Path) -> None:
    """The whole model: the part that reads text below its name, beside what reads images and sound."""
    towers = ("vision_tower.encoder", "embed_vision", "audio_tower.layers", "embed_audio")
    tensors = {f"{name}.embedding_projection.weight": torch.randn(4, 6) for name in towers}
    edit_tensors(folder, renamed={"": "language_model."}, added=tensors)
    path = folder / "config.json"
    config = {
        "architectures": ["EmbeddingGemma2Model"],
        "model_type": "embedding_gemma2",
        "text_config": read_json(path),
        "vision_config": {"model_type": "gemma4_vision", "hidden_size": 4},
        "audio_config": {"model_type": "gemma4_audio", "hidden_size": 4},
    }
    write_json(path, config)


def publish_gte_qwen2(folder: Path) -> None:
    """Code of its own for the model, which config.json says enough of, and for the tokenizer, which adds the end."""
    edit_config(
        folder, architectures=["Qwen2ForCausalLM"], auto_map={"AutoModel": "modeling_qwen.Qwen2Model"}
    )
    tokenizer = read_json(folder / "tokenizer.json")
    write_json(folder / "tokenizer.json", tokenizer | {"post_processor": None})
    path = folder / "tokenizer_config.json"
    own = [None, "tokenization_qwen.Qwen2TokenizerFast"]
    changes = {"add_eos_token": True, "auto_map": {"AutoTokenizer": own}, "tokenizer_class": "Qwen2Tokenizer"}
    write_json(path, read_json(path) | changes)


def publish_pplx(folder: Path) -> None:
    """Perplexity's class, whose name alone says that attention is both ways."""
    edit_config(
        folder,
        model_type="bidirectional_pplx_qwen3",
        architectures=["PPLXQwen3Model"],
        auto_map={"AutoModel": "modeling.PPLXQwen3Model"},
        is_causal=None,
    )


def publish_jina_ranking(folder: Path) -> None:
    """A list of documents is ranked at once: a projector of two layers reads marker tokens, no logits are."""
    hidden = read_json(folder / "config.json")["hidden_size"]
    projector = {f"projector.{number}.weight": torch.randn(hidden, hidden) for number in (0, 2)}
    edit_tensors(folder, added=projector)
    edit_config(folder, architectures=["JinaForRanking"], auto_map={"AutoModel": "modeling.JinaForRanking"})


def publish_projection(folder: Path) -> None:
    """A projection at the root of the checkpoint that no module names, its width in `num_labels`."""
    hidden = read_json(folder / "config.json")["hidden_size"]
    edit_tensors(folder, added={"linear.weight": torch.randn(2 * hidden, hidden) * 0.3})
    edit_config(folder, num_labels=2 * hidden, id2label=None, use_bidirectional_attention=True)
