"""Small tokenizers of the kinds that models have, saved as transformers saves them."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

WORDS = tuple(
    f"{first}{second}" for first in "bdfgklmnpr" for second in ("a", "e", "i", "o", "u", "ai", "ou")
)


def xlm_roberta_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Words and special tokens with XLM-R's names and places: `<s> text </s>`, 75 ids."""
    special = ("<s>", "<pad>", "</s>", "<unk>")
    tokenizer = _word_level((*special, *WORDS, "<mask>"), "<unk>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
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
        model_max_length=40,
    )
    saved.save_pretrained(folder)
    return saved


def qwen_tokenizer(folder: Path, *more: str) -> PreTrainedTokenizerFast:
    """Bytes, the answers of rerankers; special tokens are only those that a text writes out. `more`: further special
    tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("y", "e"), ("ye", "s"), ("n", "o"), ("Ġ", "n"), ("Y", "e"), ("Ye", "s")]
    vocabulary = {
        token: number for number, token in enumerate([*alphabet, *("".join(two) for two in merges)])
    }
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    saved = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>", *more],
        model_max_length=600,
        padding_side="left",
    )
    saved.save_pretrained(folder)
    return saved


def _word_level(tokens: tuple[str, ...], unknown: str) -> Tokenizer:
    tokenizer = Tokenizer(
        models.WordLevel({token: number for number, token in enumerate(tokens)}, unk_token=unknown)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer
