"""The table of models with a head: tiny random ones of transformers, one row a family and shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import transformers
from transformers import PreTrainedModel

from tests.support.models import tiny

VOCABULARY = 97
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 36,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 50,
    "max_position_embeddings": 48,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
ROBERTA = SHAPE | {"pad_token_id": 1, "type_vocab_size": 1}
DISTILBERT = {
    "vocab_size": VOCABULARY,
    "dim": 36,
    "n_layers": 2,
    "n_heads": 3,
    "hidden_dim": 50,
    "max_position_embeddings": 48,
}
DEBERTA = SHAPE | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "layer_norm_eps": 1e-7}
DECODER = SHAPE | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10}


@dataclass(frozen=True, slots=True)
class HeadCase:
    """name: of the row; model, config: class names of transformers."""

    name: str
    model: str
    config: str
    settings: dict[str, Any] = field(default_factory=dict)

    def build(self, folder: Path) -> PreTrainedModel:
        config = getattr(transformers, self.config)(**self.settings)
        return tiny(folder, getattr(transformers, self.model), config)


def _rows(kind: str) -> Callable[..., HeadCase]:
    def row(
        family: str, shape: dict[str, Any], note: str = "", config: str = "", **settings: Any
    ) -> HeadCase:
        name = f"{family} {note}".strip().lower()
        return HeadCase(name, f"{family}{kind}", f"{config or family}Config", shape | settings)

    return row


classifier = _rows("ForSequenceClassification")
masked_lm = _rows("ForMaskedLM")

CLASSIFIERS = (
    classifier("Bert", SHAPE, "one label", num_labels=1),
    classifier("Bert", SHAPE, "three labels, one type", num_labels=3, type_vocab_size=1),
    classifier("Bert", SHAPE, "two labels, one head", num_attention_heads=1),
    classifier("Roberta", ROBERTA, "one label", num_labels=1),
    classifier("XLMRoberta", ROBERTA, "five labels", num_labels=5),
    classifier("Camembert", ROBERTA, "two labels, relu", hidden_act="relu"),
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
    classifier("DebertaV2", DEBERTA, "one label", num_labels=1, pooler_hidden_size=36),
    classifier("DebertaV2", DEBERTA, "tanh", num_labels=3, pooler_hidden_act="tanh", pooler_hidden_size=36),
    classifier("DebertaV2", DEBERTA, "tanh gelu", pooler_hidden_act="gelu_new", pooler_hidden_size=36),
    classifier("Gte", SHAPE, "one label", num_labels=1),
    classifier("Gte", SHAPE, "three labels, two types", num_labels=3, type_vocab_size=2),
    classifier("NomicBert", SHAPE, "one label", num_labels=1),
    classifier("NomicBert", SHAPE, "two labels, gelu", hidden_act="gelu"),
    classifier("Qwen2", SHAPE, "one label", num_labels=1, num_key_value_heads=1),
    classifier("Qwen3", DECODER, "one label", num_labels=1),
    classifier("Qwen3", DECODER, "three labels", num_labels=3),
    classifier("Llama", DECODER, "two labels"),
)
MASKED_LMS = (
    masked_lm("Bert", SHAPE, "tied"),
    masked_lm("Bert", SHAPE, "own decoder", tie_word_embeddings=False),
    masked_lm("Bert", SHAPE, "tanh gelu, large epsilon", hidden_act="gelu_new", layer_norm_eps=0.1),
    masked_lm("Roberta", ROBERTA, "tied"),
    masked_lm("XLMRoberta", ROBERTA, "own decoder", tie_word_embeddings=False),
    masked_lm("Camembert", ROBERTA, "relu", hidden_act="relu"),
    masked_lm("DistilBert", DISTILBERT, "tied"),
    masked_lm("DistilBert", DISTILBERT, "own decoder", tie_word_embeddings=False),
    masked_lm("DistilBert", DISTILBERT, "relu", activation="relu"),
    masked_lm("MPNet", ROBERTA, "tied"),
    masked_lm("ModernBert", SHAPE, "tied", local_attention=10),
    masked_lm("ModernBert", SHAPE, "own decoder, no bias", tie_word_embeddings=False, decoder_bias=False),
    masked_lm("ModernBert", SHAPE, "all biases, silu", classifier_bias=True, classifier_activation="silu"),
    masked_lm("DebertaV2", DEBERTA, "tied"),
    masked_lm("Gte", SHAPE, "tied"),
    masked_lm("NomicBert", SHAPE, "tied"),
)
