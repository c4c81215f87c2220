"""The table of models with a head: tiny random ones, one row a family and shape.

The oracle is transformers' own class; for "New" the class of "Gte" under the names of the public code, since both are
one model; for "JinaBert" the head is stated here, on the hidden states of `jina_cases`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from embedserve_runtime.forward.arrays import FloatArray, Int32Array
from embedserve_runtime.forward.batch import PackedBatch
from tests.runtime.engines.jina_cases import HIDDEN as JINA_HIDDEN
from tests.runtime.engines.jina_cases import build_jina
from tests.support.models import tiny

CLASSIFIER, MASKED_LM = "ForSequenceClassification", "ForMaskedLM"
TOKEN_CLASSIFIER = "ForTokenClassification"
VOCABULARY = 97
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 36,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 50,
    "max_position_embeddings": 40,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
ROBERTA = SHAPE | {"pad_token_id": 1, "type_vocab_size": 1, "max_position_embeddings": 42}
DISTILBERT = {
    "vocab_size": VOCABULARY,
    "dim": 36,
    "n_layers": 2,
    "n_heads": 3,
    "hidden_dim": 50,
    "max_position_embeddings": 40,
}
DEBERTA = SHAPE | {
    "relative_attention": True,
    "pos_att_type": ["c2p", "p2c"],
    "layer_norm_eps": 1e-7,
    "pooler_hidden_size": 36,
}
DECODER = SHAPE | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10}
WINDOW = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}
GEMMA2 = DECODER | {"sliding_window": 6, "query_pre_attn_scalar": 7, "attn_logit_softcapping": 2.0}
GEMMA = DECODER | {"sliding_window": 6, "sliding_window_pattern": 2}

# Token ids of one text to the logits: (1, labels), (tokens, vocabulary) or (tokens, 1).
Logits = Callable[[Int32Array], FloatArray]


@dataclass(frozen=True, slots=True)
class HeadCase:
    """family: of the class, without the part for the head. outputs: columns of the logits.
    save: saves the model into the folder and returns the reference; the settings are laid over those of the row."""

    name: str
    family: str
    outputs: int
    save: Callable[[Path, dict[str, Any]], Logits]

    def build(self, folder: Path, **changes: Any) -> Logits:
        return self.save(folder, changes)


def logits_of(model: PreTrainedModel) -> Logits:
    def logits(ids: Int32Array) -> FloatArray:
        with torch.no_grad():
            computed: Tensor = model(torch.from_numpy(ids.astype(np.int64))[None]).logits
        return computed[0].numpy() if computed.ndim == 3 else computed.numpy()

    return logits


def _of_transformers(folder: Path, family: str, kind: str, settings: dict[str, Any]) -> Logits:
    config = getattr(transformers, f"{family}Config")(**settings)
    return logits_of(tiny(folder, getattr(transformers, f"{family}{kind}"), config))


def _of_new(folder: Path, family: str, kind: str, settings: dict[str, Any]) -> Logits:
    """GTE as its public code names it."""
    assert family == "New"
    logits = _of_transformers(folder, "Gte", kind, settings)
    change_config(folder, model_type="new", architectures=[f"New{kind}"])
    tensors = load_file(folder / "model.safetensors")
    renamed = {name.replace("gte.", "new.", 1): tensor for name, tensor in tensors.items()}
    save_file(renamed, folder / "model.safetensors")
    return logits


def _of_llama_bidirectional(folder: Path, family: str, kind: str, settings: dict[str, Any]) -> Logits:
    """NVIDIA's class: Llama both ways, pooled as config.json says, its logits by a temperature. settings: those of
    Llama, `pooling` and `temperature`."""
    pooling, temperature = settings.pop("pooling"), settings.pop("temperature")
    assert family == "LlamaBidirectional"
    config = transformers.LlamaConfig(**settings, is_causal=False)
    model = tiny(folder, transformers.LlamaForSequenceClassification, config)
    change_config(
        folder,
        model_type="llama_bidirec",
        architectures=[f"{family}{kind}"],
        auto_map={"AutoModelForSequenceClassification": f"llama_bidirectional_model.{family}{kind}"},
        pooling=pooling,
        temperature=temperature,
    )
    # What its prompt for pairs begins with.
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "[CLS]"}))

    def logits(ids: Int32Array) -> FloatArray:
        with torch.no_grad():
            hidden: Tensor = model.model(torch.from_numpy(ids.astype(np.int64))[None]).last_hidden_state[0]
            pooled = {"avg": hidden.mean(0), "cls": hidden[0], "last": hidden[-1]}[pooling]
            computed: Tensor = model.score(pooled[None]) / temperature
        return computed.numpy()

    return logits


def save_jina(folder: Path, family: str, kind: str, settings: dict[str, Any]) -> Logits:
    """settings: those of `build_jina`, and num_labels."""
    labels = settings.pop("num_labels", 2)
    hidden_states = build_jina(folder, **settings)
    source = torch.Generator().manual_seed(1)

    def matrix(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source) * 0.3

    encoder = load_file(folder / "model.safetensors")
    word_embeddings = encoder["embeddings.word_embeddings.weight"]
    if kind == CLASSIFIER:
        head = {
            "bert.pooler.dense.weight": matrix(JINA_HIDDEN, JINA_HIDDEN),
            "bert.pooler.dense.bias": matrix(JINA_HIDDEN),
            "classifier.weight": matrix(labels, JINA_HIDDEN),
            "classifier.bias": matrix(labels),
        }
    elif kind == TOKEN_CLASSIFIER:
        head = {"classifier.weight": matrix(1, JINA_HIDDEN), "classifier.bias": matrix(1)}
    else:
        head = {
            "cls.predictions.transform.dense.weight": matrix(JINA_HIDDEN, JINA_HIDDEN),
            "cls.predictions.transform.dense.bias": matrix(JINA_HIDDEN),
            "cls.predictions.transform.LayerNorm.weight": matrix(JINA_HIDDEN),
            "cls.predictions.transform.LayerNorm.bias": matrix(JINA_HIDDEN),
            "cls.predictions.bias": matrix(VOCABULARY),
        }
    save_file(
        {f"bert.{name}": tensor for name, tensor in encoder.items()} | head, folder / "model.safetensors"
    )
    names = {str(number): f"LABEL_{number}" for number in range(labels)}
    change_config(folder, architectures=[f"{family}{kind}"], id2label=names)

    def logits(ids: Int32Array) -> FloatArray:
        hidden = torch.from_numpy(hidden_states(PackedBatch.pack([ids])))
        if kind == CLASSIFIER:
            pooled = functional.linear(hidden[:1], *list(head.values())[:2]).tanh()
            return functional.linear(pooled, *list(head.values())[2:]).numpy()
        if kind == TOKEN_CLASSIFIER:
            return functional.linear(hidden, *head.values()).numpy()
        dense, dense_bias, weight, bias, decoder_bias = head.values()
        inner = functional.gelu(functional.linear(hidden, dense, dense_bias))
        eps = settings.get("eps", 1e-12)
        normed = functional.layer_norm(inner, (JINA_HIDDEN,), weight, bias, eps)
        return functional.linear(normed, word_embeddings, decoder_bias).numpy()

    return logits


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


ORACLES = {"New": _of_new, "JinaBert": save_jina, "LlamaBidirectional": _of_llama_bidirectional}


def _rows(kind: str) -> Callable[..., HeadCase]:
    def row(family: str, shape: dict[str, Any], note: str, **settings: Any) -> HeadCase:
        columns = {CLASSIFIER: settings.get("num_labels", 2), MASKED_LM: VOCABULARY, TOKEN_CLASSIFIER: 1}
        labels = {"num_labels": 1} if kind == TOKEN_CLASSIFIER else {}
        oracle = ORACLES.get(family, _of_transformers)

        def save(folder: Path, changes: dict[str, Any]) -> Logits:
            return oracle(folder, family, kind, shape | labels | settings | changes)

        return HeadCase(f"{family}, {note}", family, columns[kind], save)

    return row


classifier, masked_lm, token_classifier = map(_rows, (CLASSIFIER, MASKED_LM, TOKEN_CLASSIFIER))

CLASSIFIERS = (
    classifier("Bert", SHAPE, "one label", num_labels=1),
    classifier("Bert", SHAPE, "three labels, one type", num_labels=3, type_vocab_size=1),
    classifier("Bert", SHAPE, "two labels, one head", num_attention_heads=1),
    classifier("Roberta", ROBERTA, "one label", num_labels=1),
    classifier("Roberta", ROBERTA, "four labels, two types", num_labels=4, type_vocab_size=2),
    classifier("Roberta", ROBERTA, "large epsilon, nine heads", layer_norm_eps=0.1, num_attention_heads=9),
    classifier("XLMRoberta", ROBERTA, "five labels", num_labels=5),
    classifier("XLMRoberta", ROBERTA, "one label, one layer", num_labels=1, num_hidden_layers=1),
    classifier("XLMRoberta", ROBERTA, "tanh gelu", hidden_act="gelu_new"),
    classifier("Camembert", ROBERTA, "two labels, relu", hidden_act="relu"),
    classifier("Camembert", ROBERTA, "one label", num_labels=1),
    classifier("Camembert", ROBERTA, "three labels, one head", num_labels=3, num_attention_heads=1),
    classifier("DistilBert", DISTILBERT, "one label", num_labels=1),
    classifier("DistilBert", DISTILBERT, "three labels, relu", num_labels=3, activation="relu"),
    classifier("DistilBert", DISTILBERT, "two labels, one layer", n_layers=1),
    classifier("MPNet", ROBERTA, "one label", num_labels=1),
    classifier("MPNet", ROBERTA, "four labels", num_labels=4),
    classifier("MPNet", ROBERTA, "two labels, nine heads", num_attention_heads=9),
    classifier("ModernBert", SHAPE, "cls", num_labels=1, classifier_pooling="cls", local_attention=10),
    classifier("ModernBert", SHAPE, "mean", num_labels=3, classifier_pooling="mean"),
    classifier(
        "ModernBert",
        SHAPE,
        "all biases, silu",
        classifier_bias=True,
        norm_bias=True,
        classifier_activation="silu",
    ),
    classifier("DebertaV2", DEBERTA, "one label", num_labels=1),
    classifier("DebertaV2", DEBERTA, "tanh", num_labels=3, pooler_hidden_act="tanh"),
    classifier("DebertaV2", DEBERTA, "tanh gelu", pooler_hidden_act="gelu_new"),
    classifier("DebertaV2", DEBERTA, "convolution, narrow words", conv_kernel_size=3, embedding_size=20),
    classifier("Gte", SHAPE, "one label", num_labels=1),
    classifier("Gte", SHAPE, "three labels, two types", num_labels=3, type_vocab_size=2),
    classifier("Gte", SHAPE, "nine heads, relu", num_attention_heads=9, hidden_act="relu"),
    classifier("New", SHAPE, "one label", num_labels=1),
    classifier("New", SHAPE, "three labels, two types", num_labels=3, type_vocab_size=2),
    classifier("New", SHAPE, "nine heads, relu", num_attention_heads=9, hidden_act="relu"),
    classifier("NomicBert", SHAPE, "one label", num_labels=1),
    classifier("NomicBert", SHAPE, "two labels, gelu", hidden_act="gelu"),
    classifier("NomicBert", SHAPE, "three labels, one type", num_labels=3, type_vocab_size=1),
    classifier("JinaBert", {}, "one label", num_labels=1),
    classifier("JinaBert", {}, "three labels, six heads", num_labels=3, heads=6),
    classifier("JinaBert", {}, "two labels, relu gate", feed_forward="reglu"),
    classifier("Qwen2", SHAPE, "one label", num_labels=1, num_key_value_heads=1),
    classifier("Qwen2", SHAPE, "three labels, window", num_labels=3, num_key_value_heads=3, **WINDOW),
    classifier("Qwen2", SHAPE, "bidirectional", num_key_value_heads=1, is_causal=False),
    classifier("Qwen3", DECODER, "one label", num_labels=1),
    classifier("Qwen3", DECODER, "three labels", num_labels=3),
    classifier("Qwen3", DECODER, "biases, no padding", attention_bias=True, pad_token_id=None),
    classifier("Llama", DECODER, "two labels"),
    classifier("Llama", DECODER, "one label, biases", num_labels=1, attention_bias=True, mlp_bias=True),
    classifier("Llama", DECODER, "three labels, one key head", num_labels=3, num_key_value_heads=1),
    classifier("LlamaBidirectional", DECODER, "mean", num_labels=1, pooling="avg", temperature=1.0),
    classifier("LlamaBidirectional", DECODER, "last, padding", num_labels=3, pooling="last", temperature=0.5),
    classifier("LlamaBidirectional", DECODER, "first", num_labels=2, pooling="cls", temperature=3.0),
    classifier("Mistral", DECODER, "one label, window", num_labels=1, sliding_window=6),
    classifier("Mistral", DECODER, "three labels, no window", num_labels=3, sliding_window=None),
    classifier("Mistral", DECODER, "two labels, one key head", num_key_value_heads=1),
    classifier("Electra", SHAPE, "one label, narrow words", num_labels=1, embedding_size=20),
    classifier("Electra", SHAPE, "three labels, relu", num_labels=3, embedding_size=36, hidden_act="relu"),
    classifier("Electra", SHAPE, "two labels, nine heads", num_attention_heads=9, embedding_size=50),
    classifier("Albert", SHAPE, "one label", num_labels=1, embedding_size=20),
    classifier("Albert", SHAPE, "three labels, relu", num_labels=3, embedding_size=50, hidden_act="relu"),
    classifier("Albert", SHAPE, "two labels, nine heads", num_attention_heads=9, embedding_size=20),
    classifier("JinaEmbeddingsV3", SHAPE, "one label", num_labels=1),
    classifier("JinaEmbeddingsV3", SHAPE, "three labels, two types", num_labels=3, type_vocab_size=2),
    classifier("JinaEmbeddingsV3", SHAPE, "two labels, nine heads", num_attention_heads=9),
    classifier("Gemma", DECODER, "one label", num_labels=1),
    classifier("Gemma", DECODER, "three labels, bidirectional", num_labels=3, is_causal=False),
    classifier("Gemma", DECODER, "two labels, biases", attention_bias=True),
    classifier("Gemma2", GEMMA2, "one label", num_labels=1),
    classifier("Gemma2", GEMMA2, "three labels, bidirectional", num_labels=3, is_causal=False),
    classifier(
        "Gemma2", GEMMA2, "two labels, biases, no cap", attention_bias=True, attn_logit_softcapping=None
    ),
    classifier("Gemma3Text", GEMMA, "one label", num_labels=1),
    classifier(
        "Gemma3Text", GEMMA, "three labels, bidirectional", num_labels=3, use_bidirectional_attention=True
    ),
    classifier("Gemma3Text", GEMMA, "two labels, biases", attention_bias=True, query_pre_attn_scalar=7),
)
MASKED_LMS = (
    masked_lm("Bert", SHAPE, "tied"),
    masked_lm("Bert", SHAPE, "own decoder", tie_word_embeddings=False),
    masked_lm("Bert", SHAPE, "tanh gelu, large epsilon", hidden_act="gelu_new", layer_norm_eps=0.1),
    masked_lm("Roberta", ROBERTA, "tied"),
    masked_lm(
        "Roberta", ROBERTA, "own decoder, large epsilon", tie_word_embeddings=False, layer_norm_eps=0.1
    ),
    masked_lm("Roberta", ROBERTA, "one head, tanh gelu", num_attention_heads=1, hidden_act="gelu_new"),
    masked_lm("XLMRoberta", ROBERTA, "tied"),
    masked_lm("XLMRoberta", ROBERTA, "own decoder", tie_word_embeddings=False),
    masked_lm("XLMRoberta", ROBERTA, "nine heads", num_attention_heads=9),
    masked_lm("Camembert", ROBERTA, "relu", hidden_act="relu"),
    masked_lm("Camembert", ROBERTA, "own decoder", tie_word_embeddings=False),
    masked_lm("Camembert", ROBERTA, "two types, one layer", type_vocab_size=2, num_hidden_layers=1),
    masked_lm("DistilBert", DISTILBERT, "tied"),
    masked_lm("DistilBert", DISTILBERT, "own decoder", tie_word_embeddings=False),
    masked_lm("DistilBert", DISTILBERT, "relu", activation="relu"),
    masked_lm("MPNet", ROBERTA, "tied"),
    masked_lm("MPNet", ROBERTA, "own decoder", tie_word_embeddings=False),
    masked_lm("MPNet", ROBERTA, "relu, large epsilon", hidden_act="relu", layer_norm_eps=0.1),
    masked_lm("ModernBert", SHAPE, "tied", local_attention=10),
    masked_lm("ModernBert", SHAPE, "own decoder, no bias", tie_word_embeddings=False, decoder_bias=False),
    masked_lm("ModernBert", SHAPE, "all biases, silu", classifier_bias=True, classifier_activation="silu"),
    masked_lm("DebertaV2", DEBERTA, "tied"),
    masked_lm(
        "DebertaV2", DEBERTA, "own decoder, narrow words", tie_word_embeddings=False, embedding_size=20
    ),
    masked_lm("DebertaV2", DEBERTA, "tied, wide words, relu", embedding_size=50, hidden_act="relu"),
    masked_lm("DebertaV2", DEBERTA, "the words themselves", legacy=False, layer_norm_eps=0.1),
    masked_lm("Gte", SHAPE, "tied"),
    masked_lm("Gte", SHAPE, "own decoder", tie_word_embeddings=False),
    masked_lm("Gte", SHAPE, "two types, large epsilon", type_vocab_size=2, layer_norm_eps=0.1),
    masked_lm("New", SHAPE, "tied"),
    masked_lm("New", SHAPE, "own decoder", tie_word_embeddings=False),
    masked_lm("New", SHAPE, "two types, large epsilon", type_vocab_size=2, layer_norm_eps=0.1),
    masked_lm("NomicBert", SHAPE, "tied"),
    masked_lm("NomicBert", SHAPE, "own decoder", tie_word_embeddings=False),
    masked_lm("NomicBert", SHAPE, "gelu, large epsilon", hidden_act="gelu", layer_norm_eps=0.1),
    masked_lm("JinaBert", {}, "three heads"),
    masked_lm("JinaBert", {}, "six heads, relu gate", heads=6, feed_forward="reglu"),
    masked_lm("JinaBert", {}, "one head, large epsilon", heads=1, eps=0.1),
)
TOKEN_CLASSIFIERS = (
    token_classifier("Bert", SHAPE, "odd heads"),
    token_classifier("Bert", SHAPE, "one layer, one type", num_hidden_layers=1, type_vocab_size=1),
    token_classifier("Roberta", ROBERTA, "odd heads"),
    token_classifier("XLMRoberta", ROBERTA, "nine heads", num_attention_heads=9),
    token_classifier("Camembert", ROBERTA, "relu", hidden_act="relu"),
    token_classifier("DistilBert", DISTILBERT, "odd heads"),
    token_classifier("MPNet", ROBERTA, "odd heads"),
    token_classifier("ModernBert", SHAPE, "windows", local_attention=10),
    token_classifier(
        "ModernBert", SHAPE, "all biases, silu", classifier_bias=True, classifier_activation="silu"
    ),
    token_classifier("DebertaV2", DEBERTA, "both position terms"),
    token_classifier("Gte", SHAPE, "odd heads"),
    token_classifier("Gte", SHAPE, "nine heads, two types", num_attention_heads=9, type_vocab_size=2),
    token_classifier("New", SHAPE, "odd heads"),
    token_classifier("New", SHAPE, "nine heads, relu", num_attention_heads=9, hidden_act="relu"),
    token_classifier("NomicBert", SHAPE, "odd heads"),
    token_classifier("JinaBert", {}, "three heads"),
    token_classifier("Qwen2", SHAPE, "bidirectional", num_key_value_heads=1, is_causal=False),
    token_classifier("Qwen3", DECODER, "grouped heads"),
    token_classifier("Llama", DECODER, "grouped heads"),
    token_classifier("Mistral", DECODER, "window", sliding_window=6),
)
