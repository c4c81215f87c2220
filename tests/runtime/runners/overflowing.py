"""A model that overflows in float16 on one token, and in float32 not, or there too."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import BertModel

from embedserve_runtime.config import load_config
from embedserve_runtime.loading.runners import load_runners, open_served_model
from embedserve_runtime.runners.base import Runner
from tests.runtime.pipelines.folders import bert, tokens_of

# The token that a layer answers with numbers beyond float16, and texts with and without it.
WORD = "quick"
OVERFLOWS, FITS = f"{WORD} {WORD} {WORD}", "some other words"
# In float16 the first product stays below 65,504 and the second does not; beyond float32 with the other one.
LARGE, TOO_LARGE = 1e2, 1e36


def overflowing(folder: Path, second: float = LARGE, **settings: object) -> Path:
    """A BERT whose one layer multiplies what it sees of `WORD` by 1e4 and by `second`."""
    bert(folder, BertModel, **settings)
    model = BertModel.from_pretrained(folder)
    hidden = model.config.hidden_size
    direction = torch.linspace(-1, 1, hidden)
    direction /= direction.norm()
    embeddings, layer = model.embeddings, model.encoder.layer[0]
    with torch.no_grad():
        for table in (embeddings.position_embeddings, embeddings.token_type_embeddings):
            table.weight.zero_()
        for norm in (embeddings.LayerNorm, layer.attention.output.LayerNorm, layer.output.LayerNorm):
            norm.weight.fill_(1)
            norm.bias.zero_()
        for dense in (layer.attention.output.dense, layer.intermediate.dense, layer.output.dense):
            dense.weight.zero_()
            dense.bias.zero_()
        # A state whose part along the direction is above 4, of at most 4.9 in 24 dimensions: of no token but this one.
        layer.intermediate.dense.weight[0] = 1e4 * direction
        layer.intermediate.dense.bias[0] = -4e4
        layer.output.dense.weight[:, 0] = second * torch.linspace(0.5, 1, hidden).flip(0)
        embeddings.word_embeddings.weight[word_id(folder)] = 10 * direction
    model.save_pretrained(folder)
    return folder


def word_id(folder: Path) -> int:
    (runner,) = runners(folder, "float32")
    (sequence,) = tokens_of(runner.card, [WORD])
    return int(sequence.ids[1])


def runners(folder: Path, precision: str) -> list[Runner]:
    engine = {"kind": "torch", "precision": precision, "threads": 1}
    config = load_config(flags={"model": {"source": str(folder)}, "engine": engine})
    return [*load_runners(config, open_served_model(config))]
