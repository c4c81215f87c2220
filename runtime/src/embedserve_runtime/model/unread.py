"""Refuses a model with a tensor that nobody reads, unless it is known to take no part in what is served.

A projection, a scale or a head that is left out would give other vectors than those that the model's authors meant,
silently. transformers and sentence-transformers leave such tensors out too, with a warning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from embedserve_runtime.errors import UnsupportedArchitecture
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.checkpoint import Checkpoint
from embedserve_runtime.model.files import ModelFiles
from embedserve_runtime.model.hf_files.transformers import ModelTypeConfig
from embedserve_runtime.model.lora import PREFIX, find_module
from embedserve_runtime.model.tensors import TrackedTensors

CLASSIFIER, TOKEN_CLASSIFIER = "ForSequenceClassification", "ForTokenClassification"
MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class StrayTensors:
    """Tensors of an encoder's checkpoint that need no reader.

    names: a regular expression for the whole name. family: `Encoder.family` that alone has them; empty for any.
    architectures: ends of the names in `architectures` of config.json, of which one must be there; empty for any.
    min_rows: rows of the tensor, from which on it is a stray. without_adapter: whether it is one only where no adapter
    is merged into the encoder.
    """

    purpose: str
    names: str
    family: str = ""
    architectures: tuple[str, ...] = ()
    min_rows: int = 0
    without_adapter: bool = False


STRAYS = (
    StrayTensors("numbers of positions", r"(.*\.)?position_ids"),
    StrayTensors(
        "frequencies of rotary positions", r"(.*\.)?rotary(_pos)?_emb\.(inv_freq|cos_cached|sin_cached)"
    ),
    StrayTensors("masks of causal attention", r"(.*\.)?attn\.(masked_)?bias"),
    StrayTensors("the pooler of a classifier", r"(.*\.)?pooler\.(dense\.)?(weight|bias)"),
    StrayTensors(
        "the pooler of a classifier", r"(.*\.)?pooler\.dense\.parametrizations\..*", "jina_embeddings_v3"
    ),
    StrayTensors(
        "adapters of tasks",
        r".*\.parametrizations\.weight\.0\.lora_[AB]",
        "jina_embeddings_v3",
        without_adapter=True,
    ),
    StrayTensors("a language-model head", r"lm_head\..*"),
    StrayTensors("a language-model head", r"cls\.(predictions|seq_relationship)\..*"),
    StrayTensors("a language-model head", r"(lm|mask)_predictions\..*"),
    StrayTensors("a language-model head", r"vocab_(transform|layer_norm|projector)\..*", "distilbert"),
    StrayTensors("a language-model head", r"(head\.(dense|norm)|decoder)\.(weight|bias)", "modernbert"),
    StrayTensors("a language-model head", r"(generator|discriminator)_(predictions|lm_head)\..*", "electra"),
    StrayTensors("a language-model head", r"(predictions|sop_classifier)\..*", "albert"),
    StrayTensors("a second copy of the word embeddings", r"(shared|encoder\.embed_tokens)\.weight", "t5"),
    StrayTensors(
        "the vision and audio towers",
        r"(model\.)?(vision_tower|embed_vision|audio_tower|embed_audio)\..*",
        "embedding_gemma2",
    ),
    StrayTensors("labels of texts", r"classifier\..*|score\.(weight|bias)", architectures=(CLASSIFIER,)),
    StrayTensors("labels of texts", r"pre_classifier\..*", "distilbert", (CLASSIFIER,)),
    StrayTensors("labels of texts", r"head\.(dense|norm)\.(weight|bias)", "modernbert", (CLASSIFIER,)),
    StrayTensors("labels of tokens", r"classifier\.(weight|bias)", "", (TOKEN_CLASSIFIER,), min_rows=2),
    StrayTensors("answers in a text", r"qa_outputs\.(weight|bias)", architectures=("ForQuestionAnswering",)),
    StrayTensors("choices", r"classifier\.(weight|bias)", architectures=("ForMultipleChoice",)),
)


def check_all_read(files: ModelFiles, tensors: TrackedTensors, *cards: ModelCard) -> None:
    """Raise UnsupportedArchitecture, naming the tensors, where some were opened that nobody has read.

    tensors: what the tensors of the cards have been read through. cards: of all routes.
    """
    card_of = {card.encoder_path: card for card in cards}
    for folder, checkpoint in tensors.opened.items():
        module_files, card = files.enter_folder(folder), card_of.get(folder)
        rules = [] if card is None else _select_rules(module_files, card)
        _check_known(module_files, checkpoint, {name: name for name in checkpoint.unread}, rules)
    adapted = {card.adapter.folder: card for card in cards if card.adapter is not None}
    for folder, own in tensors.adapters.items():
        module_files, card = files.enter_folder(adapted[folder].encoder_path), adapted[folder]
        # A head may read the word embeddings instead of a tensor that an adapter changes.
        rules = _select_rules(module_files, card) if card.head is None else []
        _check_known(module_files, own, {name: _find_changed(name) for name in own.unread}, rules)


def _check_known(
    module_files: ModelFiles,
    checkpoint: Checkpoint,
    unread: Mapping[str, str],
    rules: Sequence[StrayTensors],
) -> None:
    """Raise UnsupportedArchitecture for unread tensors that no rule allows. unread: the name that the rules match, by
    the tensor's name in the file."""
    unknown = [
        tensor
        for tensor, match_name in unread.items()
        if not any(_is_stray(match_name, checkpoint.shape(tensor), rule) for rule in rules)
    ]
    if unknown:
        raise UnsupportedArchitecture(
            f"{module_files.path}: nothing that config.json describes reads {_list_tensors(checkpoint, unknown)}, "
            "so the model would give other vectors than its authors meant; if they are left over from training, "
            "save the model without them"
        )


def _find_changed(name: str) -> str:
    """Return the name of the tensor that an adapter's tensor changes or replaces."""
    bare = name.removeprefix(PREFIX)
    module = find_module(bare)
    return bare if module is None else f"{module}.weight"


def _select_rules(module_files: ModelFiles, card: ModelCard) -> list[StrayTensors]:
    architectures = (
        module_files.parse_if_there("config.json", ModelTypeConfig, ModelTypeConfig()).architectures or []
    )
    return [
        rule
        for rule in STRAYS
        if rule.family in ("", card.encoder.family)
        and (not rule.architectures or any(name.endswith(rule.architectures) for name in architectures))
        and (card.adapter is None or not rule.without_adapter)
    ]


def _is_stray(name: str, shape: tuple[int, ...], rule: StrayTensors) -> bool:
    return re.fullmatch(rule.names, name) is not None and (*shape, 0)[0] >= rule.min_rows


def _list_tensors(checkpoint: Checkpoint, names: Sequence[str]) -> str:
    listed = ", ".join(f"{name} {list(checkpoint.shape(name))}" for name in names[:MAX_NAMED])
    rest = len(names) - MAX_NAMED
    return f"the tensor{'' if len(names) == 1 else 's'} {listed}{f' and {rest} more' if rest > 0 else ''}"
