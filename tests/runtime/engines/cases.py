"""The table of encoders that every engine is tested with: one row a family and shape.

`test_encoders.py` runs every row on every engine.
"""

from __future__ import annotations

from tests.runtime.engines.bert_like_cases import BERT_LIKE
from tests.runtime.engines.case import Case, reference_of
from tests.runtime.engines.decoder_cases import DECODERS
from tests.runtime.engines.jina_cases import JINA
from tests.runtime.engines.nomic_cases import NOMIC_MIXTURES
from tests.support.models import tiny_bert


def bert(name: str, **settings: object) -> Case:
    return Case(f"bert, {name}", lambda folder: reference_of(tiny_bert(folder, **settings)))


BERT = (
    bert("odd heads"),
    bert("one layer, one head", num_hidden_layers=1, num_attention_heads=1),
    bert("tanh gelu", hidden_act="gelu_new"),
    bert("relu", hidden_act="relu"),
    bert("silu", hidden_act="silu"),
    bert("large epsilon", layer_norm_eps=0.1),
    bert("one token type", type_vocab_size=1),
)

CASES: tuple[Case, ...] = (*BERT, *BERT_LIKE, *NOMIC_MIXTURES, *JINA, *DECODERS)
