"""Refuses a model with a tensor that nobody reads, unless it is known to take no part in what is served.

A projection, a scale or a head that is left out would give other vectors than those that the model's authors meant,
without a word. transformers and sentence-transformers leave such tensors out too, with a warning.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from embedserve_runtime.errors import UnsupportedArchitecture
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.checkpoint import Checkpoint
from embedserve_runtime.model.files import FileModel, ModelFiles
from embedserve_runtime.model.tensors import TrackedTensors

CLASSIFIER, TOKEN_CLASSIFIER = "ForSequenceClassification", "ForTokenClassification"
MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class StrayTensors:
    """Tensors of an encoder's checkpoint that need no reader.

    names: a regular expression for the whole name. family: `Encoder.family` that alone has them; empty for any.
    architectures: ends of the names in `architectures` of config.json, of which one must be there; empty for any.
    min_rows: rows of the tensor, from which on it is a stray.
    """

    purpose: str
    names: str
    family: str = ""
    architectures: tuple[str, ...] = ()
    min_rows: int = 0


STRAYS = (
    StrayTensors("numbers of positions", r"(.*\.)?position_ids"),
    StrayTensors(
        "frequencies of rotary positions", r"(.*\.)?rotary(_pos)?_emb\.(inv_freq|cos_cached|sin_cached)"
    ),
    StrayTensors("masks of causal attention", r"(.*\.)?attn\.(masked_)?bias"),
    StrayTensors("the pooler of a classifier", r"(.*\.)?pooler\.(dense\.)?(weight|bias)"),
    StrayTensors("a language-model head", r"lm_head\..*"),
    StrayTensors("a language-model head", r"cls\.(predictions|seq_relationship)\..*"),
    StrayTensors("a language-model head", r"(lm|mask)_predictions\..*"),
    StrayTensors("a language-model head", r"vocab_(transform|layer_norm|projector)\..*", "distilbert"),
    StrayTensors("a language-model head", r"(head\.(dense|norm)|decoder)\.(weight|bias)", "modernbert"),
    StrayTensors("labels of texts", r"classifier\..*|score\.(weight|bias)", architectures=(CLASSIFIER,)),
    StrayTensors("labels of texts", r"pre_classifier\..*", "distilbert", (CLASSIFIER,)),
    StrayTensors("labels of texts", r"head\.(dense|norm)\.(weight|bias)", "modernbert", (CLASSIFIER,)),
    StrayTensors("labels of tokens", r"classifier\.(weight|bias)", "", (TOKEN_CLASSIFIER,), min_rows=2),
    StrayTensors("answers in a text", r"qa_outputs\.(weight|bias)", architectures=("ForQuestionAnswering",)),
    StrayTensors("choices", r"classifier\.(weight|bias)", architectures=("ForMultipleChoice",)),
)


class _ConfigFile(FileModel):
    architectures: list[str] | None = None


def check_all_read(files: ModelFiles, tensors: TrackedTensors, *cards: ModelCard) -> None:
    """Raise UnsupportedArchitecture, naming the tensors, where some were opened that nobody has read.

    tensors: what the tensors of the cards have been read through. cards: of all routes.
    """
    family_of = {card.encoder_path: card.encoder.family for card in cards}
    for folder, checkpoint in tensors.opened.items():
        strays: list[StrayTensors] = []
        if folder in family_of:
            config = files.at(folder).parse_if_there("config.json", _ConfigFile, _ConfigFile())
            strays = _select_strays(family_of[folder], config.architectures or [])
        unknown = [name for name in checkpoint.unread if not _is_stray(name, checkpoint, strays)]
        if unknown:
            raise UnsupportedArchitecture(
                f"{files.path / folder}: nothing here reads {_list_tensors(checkpoint, unknown)}, so the model would "
                "give other vectors than its authors meant; if they are left over from training, save the model "
                "without them"
            )


def _select_strays(family: str, architectures: Sequence[str]) -> list[StrayTensors]:
    return [
        one
        for one in STRAYS
        if one.family in ("", family)
        and (not one.architectures or any(name.endswith(one.architectures) for name in architectures))
    ]


def _is_stray(name: str, checkpoint: Checkpoint, strays: Sequence[StrayTensors]) -> bool:
    return any(
        re.fullmatch(one.names, name) is not None
        and (not one.min_rows or (*checkpoint.shape(name), 0)[0] >= one.min_rows)
        for one in strays
    )


def _list_tensors(checkpoint: Checkpoint, names: Sequence[str]) -> str:
    listed = ", ".join(f"{name} {list(checkpoint.shape(name))}" for name in names[:MAX_NAMED])
    rest = len(names) - MAX_NAMED
    return f"the tensor{'' if len(names) == 1 else 's'} {listed}{f' and {rest} more' if rest > 0 else ''}"
