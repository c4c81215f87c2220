"""Alibaba-NLP/gte-multilingual-base in small: the repository's files, keys, tensor names and dtypes, random weights.

Two layouts have gone by that name: its first files (model_type "new"), and transformers' own ("gte").
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import GteConfig, GteForTokenClassification, PreTrainedTokenizerFast

from tests.support.models import tiny
from tests.support.texts import WORDS

Layout = Literal["new", "gte"]
LAYOUTS: tuple[Layout, ...] = ("new", "gte")
THETA, FACTOR = 20_000.0, 8.0
HIDDEN, HEADS, LAYERS = 48, 4, 3
MAX_TOKENS = 8192
# Rows of the table of words behind the last token, as the repository has them.
SPARE_ROWS = 46
CODE = "Alibaba-NLP/new-impl--modeling"


@dataclass(frozen=True, slots=True)
class Built:
    """A folder, and the model and the tokenizer of transformers that it stands for."""

    folder: Path
    model: GteForTokenClassification
    tokenizer: PreTrainedTokenizerFast


def build_gte_multilingual(folder: Path, layout: Layout, *, modules: bool = True) -> Built:
    """Write the folder. modules: whether sentence-transformers' files are there."""
    tokenizer = save_unigram_tokenizer(folder)
    head_size = HIDDEN // HEADS
    config = GteConfig(
        vocab_size=len(tokenizer) + SPARE_ROWS,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * HIDDEN,
        max_position_embeddings=MAX_TOKENS,
        num_labels=1,
        # Fixed NTK scaling, which the class does not know by its name: a larger base, and all frequencies divided.
        rope_parameters={
            "rope_type": "linear",
            "rope_theta": THETA * FACTOR,
            "factor": FACTOR ** (2 / head_size),
        },
    )
    model = tiny(folder, GteForTokenClassification, config)
    assert isinstance(model, GteForTokenClassification)
    with torch.no_grad():
        for parameter in model.parameters():
            # Of the size that trained ones have: large ones make rounding errors larger than those of real texts.
            parameter.mul_(0.3 if parameter.ndim > 1 else 1)
            parameter.copy_(parameter.half())  # as the repository stores them
        _weigh_half_of_the_tokens(model, len(tokenizer))
    model.half().save_pretrained(folder)
    model.float()
    if layout == "new":
        _write_first_layout(folder, config)
    if modules:
        _write_modules(folder)
    return Built(folder, model, tokenizer)


def _weigh_half_of_the_tokens(model: GteForTokenClassification, tokens: int) -> None:
    """Move the head's bias so that half of the logits are above 0."""
    ids = torch.randint(4, tokens, (1, 200), generator=torch.Generator().manual_seed(1))
    model.classifier.bias.sub_(model(ids).logits.median()).copy_(model.classifier.bias.half())


def _write_first_layout(folder: Path, config: GteConfig) -> None:
    tensors = load_file(folder / "model.safetensors")
    renamed = {name.replace("gte.", "new.", 1): tensor for name, tensor in tensors.items()}
    save_file(renamed, folder / "model.safetensors", {"format": "pt"})
    written: dict[str, Any] = {
        "architectures": ["NewModel", "NewForTokenClassification"],
        "attention_probs_dropout_prob": 0.0,
        "auto_map": {
            "AutoConfig": "Alibaba-NLP/new-impl--configuration.NewConfig",
            "AutoModel": f"{CODE}.NewModel",
            "AutoModelForTokenClassification": f"{CODE}.NewForTokenClassification",
        },
        "classifier_dropout": 0.0,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": config.hidden_size,
        "id2label": {"0": "LABEL_0"},
        "initializer_range": 0.02,
        "intermediate_size": config.intermediate_size,
        "label2id": {"LABEL_0": 0},
        "layer_norm_eps": 1e-12,
        "layer_norm_type": "layer_norm",
        "logn_attention_clip1": False,
        "logn_attention_scale": False,
        "max_position_embeddings": config.max_position_embeddings,
        "model_type": "new",
        "num_attention_heads": config.num_attention_heads,
        "num_hidden_layers": config.num_hidden_layers,
        "pack_qkv": True,
        "pad_token_id": 1,
        "position_embedding_type": "rope",
        "rope_scaling": {"factor": FACTOR, "type": "ntk"},
        "rope_theta": int(THETA),
        "torch_dtype": "float16",
        "transformers_version": "4.39.1",
        "type_vocab_size": 1,
        "unpad_inputs": False,
        "use_memory_efficient_attention": False,
        "vocab_size": config.vocab_size,
    }
    (folder / "config.json").write_text(json.dumps(written, indent=2))


def _write_modules(folder: Path) -> None:
    package = "sentence_transformers.models"
    kinds = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"{package}.{kind}"}
        for number, (kind, path) in enumerate(kinds.items())
    ]
    files: Mapping[str, object] = {
        "modules.json": modules,
        "1_Pooling/config.json": {
            "word_embedding_dimension": HIDDEN,
            "pooling_mode_cls_token": True,
            "pooling_mode_mean_tokens": False,
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
        },
        "sentence_bert_config.json": {"max_seq_length": MAX_TOKENS, "do_lower_case": False},
    }
    (folder / "1_Pooling").mkdir()
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))


def save_unigram_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """XLM-R's kind, of the words and letters of the parity texts: special tokens have its names and places, so that
    `<mask>` is the last."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [word for script in WORDS.values() for word in script]
    letters = sorted({letter for word in words for letter in word})
    # Not every word is a token, so that texts have pieces too.
    pieces = [*(f"▁{word}" for word in words[::2]), "▁", *letters]
    vocabulary = [*((token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>"))]
    vocabulary += [(piece, -1.0 - number / 100) for number, piece in enumerate(dict.fromkeys(pieces))]
    tokenizer = Tokenizer(models.Unigram([*vocabulary, ("<mask>", 0.0)], unk_id=3, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    saved = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        cls_token="<s>",
        eos_token="</s>",
        sep_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        mask_token="<mask>",
        model_max_length=MAX_TOKENS,
    )
    saved.save_pretrained(folder)
    return saved
