"""Each field of the tokenizer's files, changed: the token ids stay, or the identity changes, or the start is refused.

So two models that read a text differently do not carry one name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from transformers import BertConfig, BertForSequenceClassification, BertModel

from embedserve_runtime.config import ModelSettings
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.heads.description import Task
from embedserve_runtime.model.reading import read_card
from embedserve_runtime.tokenizing import TextTokenizer, TruncationRules
from tests.runtime.model.field_changes import Answers, check_changes
from tests.runtime.model.identity_folders import SHAPE
from tests.support.models import tiny

FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
MAX_LENGTH = 14
# Known words and unknown ones, upper case, accents, spellings that NFC and NFKD tell apart, special and added tokens
# written out, blanks of every kind, and texts on both sides of the limit.
TEXTS = (
    "ba de fi",
    "  Ba\u00e9 cafe\u0301 \uff22\uff41  [MASK]x<mask> new token",
    "ba,de! don't 12345\n\n\tfi\u00a0ba \u4e2d\u6587",
    "ba de fi ba",
    "bade fiba " * 9 + "fi",
)
PAIRS = (("ba de", "fi"), ("ba de fi " * 6, "de ba " * 3), ("de", "fi ba " * 12))


@dataclass(frozen=True)
class Tokenized:
    """A model whose tokenizer has started."""

    card: ModelCard
    tokenizer: TextTokenizer

    @classmethod
    def from_folder(cls, folder: Path, task: str) -> Tokenized:
        """Read the folder and build its tokenizer. Raises ModelError or ConfigError."""
        settings = ModelSettings.model_validate({"source": str(folder), "task": task})
        card = read_card(folder, "local", settings)
        return cls(card, TextTokenizer.from_card(card))

    @property
    def space(self) -> str:
        return self.card.vector_space

    def answers(self) -> Answers:
        """The token ids of the texts and, for a reranker, of the pairs with their token types."""
        rules = TruncationRules(True, self.card.tokenizer.truncation_side)
        batches = [PackedBatch.pack(self.tokenizer.encode(TEXTS, self.card.default_prompt_text, rules))]
        if self.card.task is Task.RERANK:
            batches.append(PackedBatch.pack(self.tokenizer.encode_pairs(PAIRS, rules)))
        types = [batch.token_types for batch in batches if batch.token_types is not None]
        return [*(batch.token_ids for batch in batches), *(batch.cu_seqlens for batch in batches), *types]


def word_piece() -> Tokenizer:
    letters = "abdefi12345"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ba", "de", "fi", "cafe", "don", ",", "!", "'"]
    words += [*letters, *(f"##{letter}" for letter in letters), "t", "\u4e2d", "BA", "Ba"]
    tokenizer = Tokenizer(
        models.WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    return tokenizer


def byte_level_bpe() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("b", "a"), ("d", "e"), ("f", "i"), ("\u0120", "ba"), ("1", "2"), ("ba", "de")]
    tokens = [*alphabet, *("".join(two) for two in merges)]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    tokenizer.normalizer = normalizers.NFC()
    words = Regex(r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(words, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.add_special_tokens(["<|end|>", "<mask>"])
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single="$A <|end|>", pair="$A <|end|> $B:1 <|end|>:1", special_tokens=[("<|end|>", 262)]
            ),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def unigram() -> Tokenizer:
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "\u2581ba", "\u2581de", "fi", "ba", "\u2581", *"abdefi123',!"]
    scores = [0.0] * 4 + [-1.0 - 0.25 * number for number in range(len(pieces) - 4)]
    tokenizer = Tokenizer(models.Unigram([*zip(pieces, scores, strict=True)], unk_id=3, byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " "), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.add_special_tokens(
        ["<s>", "<pad>", "</s>", "<unk>", AddedToken("<mask>", lstrip=True, normalized=False)]
    )
    tokenizer.add_tokens([AddedToken("new token", single_word=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


CONFIG: Mapping[str, Any] = {
    "model_max_length": MAX_LENGTH,
    "clean_up_tokenization_spaces": True,
    "truncation_side": "right",
    "padding_side": "right",
    "extra_special_tokens": {},
    "add_prefix_space": None,
    "split_special_tokens": False,
}
BERT: Mapping[str, Any] = {
    **CONFIG,
    "tokenizer_class": "BertTokenizer",
    "do_lower_case": True,
    "do_basic_tokenize": True,
    "never_split": None,
    "strip_accents": None,
    "tokenize_chinese_chars": True,
    **{f"{name.lower()}_token": f"[{name}]" for name in ("PAD", "UNK", "CLS", "SEP", "MASK")},
    "added_tokens_decoder": {"4": {"content": "[MASK]", "lstrip": False, "special": True}},
}
BYTES: Mapping[str, Any] = {
    **CONFIG,
    "tokenizer_class": "Qwen2Tokenizer",
    "add_prefix_space": False,
    "eos_token": "<|end|>",
    "pad_token": {"content": "<|end|>", "lstrip": False},
    "errors": "replace",
    "chat_template": "{{ messages[0].content }}",
    "add_bos_token": False,
    "auto_map": {"AutoTokenizer": ["tokenization.Qwen2Tokenizer", "tokenization.Qwen2TokenizerFast"]},
    "add_eos_token": True,
    # The second one is of the vocabulary, and no added token by tokenizer.json.
    "added_tokens_decoder": {
        "262": {"content": "<|end|>", "normalized": False, "special": True},
        "260": {"content": "12", "single_word": False, "lstrip": True},
    },
}
LLAMA: Mapping[str, Any] = {
    **{name: value for name, value in CONFIG.items() if name != "truncation_side"},
    "tokenizer_class": "LlamaTokenizerFast",
    "add_bos_token": True,
    "add_eos_token": True,
    "bos_token": "<s>",
    "eos_token": {"content": "</s>", "normalized": False},
    "unk_token": "<unk>",
    "legacy": False,
    "sp_model_kwargs": {},
    "use_default_system_prompt": False,
    "added_tokens_decoder": {"21": {"content": "new token", "single_word": True, "normalized": True}},
}
TOKENIZERS = {
    "WordPiece": (word_piece, BERT, "auto"),
    "WordPiece, pairs": (word_piece, BERT, "rerank"),
    "byte-level BPE": (byte_level_bpe, BYTES, "auto"),
    "Unigram": (unigram, LLAMA, "auto"),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_no_setting_gives_other_token_ids_under_one_identity(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, config, task = TOKENIZERS[name]
    saved, tokenizer = tmp_path / "saved", build()
    shape = BertConfig(**SHAPE | {"vocab_size": tokenizer.get_vocab_size(), "num_labels": 1})
    tiny(saved, BertForSequenceClassification if task == "rerank" else BertModel, shape)
    tokenizer.enable_truncation(9, direction="right" if task == "rerank" else "left")
    tokenizer.enable_padding(length=30, pad_token="ba")
    tokenizer.save(str(saved / "tokenizer.json"))
    (saved / "tokenizer_config.json").write_text(json.dumps(config))
    (saved / "special_tokens_map.json").write_text(json.dumps({"cls_token": "[CLS]", "bos_token": "<s>"}))
    check_changes(
        saved, Tokenized.from_folder, lambda home: [home / file for file in FILES], monkeypatch, task
    )
