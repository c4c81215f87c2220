"""Tokenizers of every kind that the model families have: one real, the others trained on a few sentences."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from embedserve_runtime.tokenizing import Side, TextTokenizer
from tests.support.models import minilm_folder

SCRIPTS = {
    "english": "The quick brown fox jumps over the lazy dog. ",
    "german": "Falsches Üben von Xylophonmusik quält jeden größeren Zwerg. ",
    "russian": "Съешь же ещё этих мягких французских булок, да выпей чаю. ",
    "greek": "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. ",
    "arabic": "نص حكيم له سر قاطع وذو شأن عظيم. ",
    "hebrew": "דג סקרן שט בים מאוכזב ולפתע מצא חברה. ",
    "hindi": "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण। ",
    "thai": "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า ",
    "chinese": "我能吞下玻璃而不伤身体。视野无限广，窗外有蓝天。",
    "japanese": "いろはにほへと ちりぬるを 色は匂へど。",
    "korean": "키스의 고유조건은 입술끼리 만나야 하고. ",
    "emoji": "👩🏽‍🚀 reads 📚, then sleeps 😴. ",
}
# Combining marks, no-break and zero-width characters, byte-order mark, ligature, private use, the last code point.
ODD = "e\u0301\u0327 n\u00a0b\u200bz\u200dw\ufeff \ufb01 \u2126 \ue000 \u0000\t\r\n  \u3000 İıſß \U0010ffff"
BOS, EOS = ("<s>", 0), ("</s>", 1)
SPECIAL = ["<s>", "</s>", "<unk>", "<pad>"]
QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def bert_kind() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(SCRIPTS.values(), trainer)
    tokenizer.post_processor = processors.BertProcessing(EOS, BOS)
    return tokenizer


def roberta_kind() -> Tokenizer:
    tokenizer = _byte_bpe()
    tokenizer.post_processor = processors.RobertaProcessing(EOS, BOS)
    return tokenizer


def modernbert_kind() -> Tokenizer:
    tokenizer = _byte_bpe()
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.post_processor = _template("<s> $A </s>", "<s> $A </s> $B:1 </s>:1")
    return tokenizer


def xlm_roberta_kind() -> Tokenizer:
    tokenizer = _unigram(
        normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]),
        pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]),
    )
    tokenizer.post_processor = _template("<s> $A </s>", "<s> $A </s> </s> $B </s>")
    return tokenizer


def deberta_kind() -> Tokenizer:
    strip = normalizers.Sequence([normalizers.Strip(), normalizers.NFKC()])
    tokenizer = _unigram(strip, pre_tokenizers.Metaspace())
    tokenizer.post_processor = _template("<s>:0 $A:0 </s>:0", "<s>:0 $A:0 </s>:0 $B:1 </s>:1")
    return tokenizer


def qwen_kind() -> Tokenizer:
    """No special token but at the end, and that from one of several post-processors."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    _train_bytes(tokenizer)
    tokenizer.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False), _template("$A </s>", "$A $B:1 </s>:1")]
    )
    return tokenizer


def llama_kind() -> Tokenizer:
    """A template that names no pair: the library's own joins both texts without special tokens."""
    tokenizer = _byte_bpe()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[BOS])
    return tokenizer


def gemma_kind() -> Tokenizer:
    """Blanks are letters, so that a text is one word and can be cut nowhere with certainty."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(SCRIPTS.values(), trainer)
    tokenizer.post_processor = _template("<s> $A </s>", "<s> $A </s> <s>:1 $B:1 </s>:1")
    return tokenizer


def bare_kind() -> Tokenizer:
    return _byte_bpe()


def minilm_kind() -> Tokenizer:
    return Tokenizer.from_file(str(minilm_folder() / "tokenizer.json"))


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "minilm": minilm_kind,
    "bert": bert_kind,
    "roberta": roberta_kind,
    "modernbert": modernbert_kind,
    "xlm-roberta": xlm_roberta_kind,
    "deberta": deberta_kind,
    "qwen": qwen_kind,
    "llama": llama_kind,
    "gemma": gemma_kind,
    "no post-processor": bare_kind,
}


@cache
def saved(kind: str) -> str:
    """The text of tokenizer.json, from which each user makes a tokenizer of its own."""
    text: str = KINDS[kind]().to_str()
    return text


@cache
def ours(kind: str, max_length: int, *, pair_types: bool = True) -> TextTokenizer:
    tokenizer = Tokenizer.from_str(saved(kind))
    return TextTokenizer(tokenizer, max_length, tokenizer.get_vocab_size(), pair_types=pair_types)


@cache
def transformers_of(kind: str, side: Side) -> PreTrainedTokenizerFast:
    """Return the oracle of what is done with ids: special tokens, token types, pairs, prompts and truncation.

    The ids of a text come from the library that the runtime uses too; `independent.py` is their oracle.
    """
    names = {"unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    if kind == "minilm":
        names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(saved(kind)),
        truncation_side=side,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **names,
    )


def _template(single: str, pair: str) -> processors.TemplateProcessing:
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=[BOS, EOS])


def _byte_bpe() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    _train_bytes(tokenizer)
    return tokenizer


def _train_bytes(tokenizer: Tokenizer) -> None:
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SCRIPTS.values(), trainer)


def _unigram(normalizer: normalizers.Normalizer, pre_tokenizer: pre_tokenizers.PreTokenizer) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.UnigramTrainer(
        vocab_size=400, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(SCRIPTS.values(), trainer)
    return tokenizer
