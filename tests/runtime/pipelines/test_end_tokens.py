"""The tokens that stand around a text by `add_bos_token` and `add_eos_token`, against transformers' own template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import MistralConfig, MistralModel, PreTrainedTokenizerFast

from embedserve_runtime.config import ModelSettings
from embedserve_runtime.errors import ModelInvalid
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.reading import read_card
from embedserve_runtime.tokenizing import TextTokenizer, TruncationRules
from tests.runtime.engines.engines import ENGINES
from tests.runtime.heads.head_runner import dense_of, greatest, runner_of
from tests.support.models import tiny
from tests.support.tolerances import FP32_MAX_ABS_DIFF

WORDS = ("<unk>", "<s>", "</s>", "hello", "world", "a", "vector")
BOS, EOS = 1, 2
TEXTS = ["hello", "hello world", "a vector " * 40, "hello </s>"]
LENGTH = 16


def template(*pieces: str) -> processors.TemplateProcessing:
    return processors.TemplateProcessing(single=[*pieces], special_tokens=[("<s>", BOS), ("</s>", EOS)])


def tokenizer_of(processor: processors.PostProcessor | None) -> Tokenizer:
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    if processor is not None:
        tokenizer.post_processor = processor
    return tokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Mistral whose vectors are those of the last token, without a tokenizer."""
    folder = tmp_path_factory.mktemp("mistral")
    config = MistralConfig(
        vocab_size=len(WORDS),
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=3,
        intermediate_size=30,
        max_position_embeddings=64,
    )
    tiny(folder, MistralModel, config)
    modules = ("", "Transformer"), ("1_Pooling", "Pooling")
    lines = [
        {"idx": number, "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (path, kind) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(lines))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "lasttoken"}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": LENGTH}))
    return folder


def folder_of(model: Path, target: Path, tokenizer: Tokenizer, **config: Any) -> Path:
    """The model with a tokenizer of its own, in a folder beside it."""
    target.mkdir(exist_ok=True)
    for path in model.iterdir():
        (target / path.name).symlink_to(path)
    tokenizer.save(str(target / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (target / "tokenizer_config.json").write_text(json.dumps({**names, **config}))
    return target


def card_of(folder: Path) -> ModelCard:
    return read_card(folder, "local", ModelSettings(source=str(folder)))


def ids_of(card: ModelCard, text: str, *, side: str = "right") -> list[int]:
    rules = TruncationRules(True, "left" if side == "left" else "right")
    (ids,) = TextTokenizer.from_card(card).encode([text], "", rules)
    return [int(number) for number in ids]


BARE, BEGINS, ENDS, BOTH = None, template("<s>", "$A"), template("$A", "</s>"), template("<s>", "$A", "</s>")
BYTES = processors.Sequence([processors.ByteLevel(trim_offsets=False), BEGINS])
OWN_CODE = {"AutoTokenizer": ["tokenization_qwen.Qwen2Tokenizer", "tokenization_qwen.Qwen2TokenizerFast"]}
# What tokenizer.json says, what tokenizer_config.json says, and whether a text begins and ends with a special token.
CASES: dict[str, tuple[Any, dict[str, Any], tuple[bool, bool]]] = {
    "Mistral with an end token (e5-mistral)": (
        BEGINS,
        {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": True},
        (True, True),
    ),
    "Llama, the begin token by default": (
        BARE,
        {"tokenizer_class": "LlamaTokenizerFast", "add_eos_token": True},
        (True, True),
    ),
    "Llama, the end token not by default": (
        BOTH,
        {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True},
        (True, False),
    ),
    "Llama with neither": (
        BOTH,
        {"tokenizer_class": "LlamaTokenizer", "add_bos_token": False, "add_eos_token": False},
        (False, False),
    ),
    "both already in tokenizer.json": (
        BOTH,
        {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": True},
        (True, True),
    ),
    "Gemma": (BEGINS, {"tokenizer_class": "GemmaTokenizer", "add_eos_token": True}, (True, True)),
    "behind a byte-level step": (
        BYTES,
        {"tokenizer_class": "GemmaTokenizerFast", "add_eos_token": True},
        (True, True),
    ),
    "GPT-NeoX, the begin token not by default": (
        BARE,
        {"tokenizer_class": "GPTNeoXTokenizerFast", "add_eos_token": True},
        (False, True),
    ),
    "Qwen2 by code of the repository's own (gte-Qwen2)": (
        BARE,
        {
            "tokenizer_class": "Qwen2Tokenizer",
            "auto_map": OWN_CODE,
            "add_bos_token": True,
            "add_eos_token": True,
        },
        (False, True),
    ),
    "Qwen2, which ignores the flags (Qwen3-Embedding)": (
        ENDS,
        {"tokenizer_class": "Qwen2Tokenizer", "add_bos_token": False, "add_eos_token": False},
        (False, True),
    ),
    "a class without flags": (
        BEGINS,
        {"tokenizer_class": "PreTrainedTokenizerFast", "add_eos_token": True},
        (True, False),
    ),
    "Llama without a flag": (ENDS, {"tokenizer_class": "LlamaTokenizer"}, (False, True)),
    "no class, which is Llama's by the model's type": (BEGINS, {"add_eos_token": True}, (True, True)),
    "a class that transformers 4 does not know": (
        BEGINS,
        {"tokenizer_class": "TokenizersBackend", "add_eos_token": True},
        (True, False),
    ),
}


@pytest.mark.parametrize(("processor", "config", "ends"), CASES.values(), ids=CASES)
def test_a_text_stands_between_the_tokens_that_transformers_puts_around_it(
    model: Path, tmp_path: Path, processor: Any, config: dict[str, Any], ends: tuple[bool, bool]
) -> None:
    card = card_of(folder_of(model, tmp_path, tokenizer_of(processor), **config))
    bos, eos = ends
    # The flags of this class make the template that those of transformers 4 made by class.
    oracle = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer_of(None),
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        add_bos_token=bos,
        add_eos_token=eos,
    )
    for text in TEXTS:
        want = oracle(text, truncation=True, max_length=LENGTH)["input_ids"]
        assert ids_of(card, text) == want
    long = ids_of(card, TEXTS[2], side="left")
    assert len(long) == LENGTH
    assert (long[0] == BOS, long[-1] == EOS) == ends
    assert long.count(EOS) == eos


@pytest.mark.parametrize("engine", ENGINES)
def test_the_vector_is_that_of_the_end_token(model: Path, tmp_path: Path, engine: str) -> None:
    flags = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": True}
    flagged = folder_of(model, tmp_path / "asked", tokenizer_of(BEGINS), **flags)
    card = card_of(flagged)
    sequences = [np.array([BOS, *map(WORDS.index, text.split()), EOS], dtype=np.int32) for text in TEXTS[:2]]
    runner = runner_of(flagged, engine)
    ours = [np.array(ids_of(card, text), dtype=np.int32) for text in TEXTS[:2]]
    assert greatest(dense_of(runner, ours) - dense_of(runner, sequences)) <= FP32_MAX_ABS_DIFF
    reference = MistralModel.from_pretrained(str(model)).eval()
    for row, ids in zip(dense_of(runner, ours), sequences, strict=True):
        (want,) = reference(reference.dummy_inputs["input_ids"].new_tensor(ids[None])).last_hidden_state[
            :, -1
        ]
        assert greatest(row - want.detach().numpy()) <= FP32_MAX_ABS_DIFF


def test_the_identity_changes_where_the_tokens_do_and_nowhere_else(model: Path, tmp_path: Path) -> None:
    def space(name: str, processor: Any, **config: Any) -> str:
        return card_of(folder_of(model, tmp_path / name, tokenizer_of(processor), **config)).vector_space

    llama = {"tokenizer_class": "LlamaTokenizer"}
    bare = space("bare", BEGINS, **llama)
    assert space("as it is", BEGINS, **llama, add_bos_token=True, add_eos_token=False) == bare
    assert space("ends", BEGINS, **llama, add_bos_token=True, add_eos_token=True) != bare
    assert space("ignored", BEGINS, tokenizer_class="Qwen2Tokenizer", add_eos_token=True) == bare


def test_an_end_token_that_the_vocabulary_does_not_have_is_refused(model: Path, tmp_path: Path) -> None:
    flags = {"tokenizer_class": "LlamaTokenizer", "add_eos_token": True, "eos_token": "<end>"}
    folder = folder_of(model, tmp_path, tokenizer_of(BEGINS), **flags)
    with pytest.raises(
        ModelInvalid, match=r"add_eos_token asks for <end>, which tokenizer.json does not have"
    ):
        card_of(folder)
