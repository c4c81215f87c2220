"""Tokenizers as the repositories of the census have them: kind, special tokens and their places, few words."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tests.census.gte_multilingual import save_unigram_tokenizer
from tests.support.tiny_models import build_tiny_wordpiece
from tests.support.tokenizers import with_cut_tokenizer

MAX_TOKENS = 64
JINA_MARKERS = ("[QueryMarker]", "[DocumentMarker]")


def save_wordpiece(folder: Path) -> None:
    """BERT's, the beginning of MiniLM's vocabulary."""
    with_cut_tokenizer(folder)


def save_tiny_wordpiece(folder: Path) -> None:
    """BERT's with fewer than 97 ids; pairs have no token types."""
    PreTrainedTokenizerFast(
        tokenizer_object=build_tiny_wordpiece(),
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=MAX_TOKENS,
        model_input_names=["input_ids", "attention_mask"],
    ).save_pretrained(folder)


def save_sentencepiece(folder: Path) -> None:
    """XLM-R's."""
    save_unigram_tokenizer(folder)
    _edit_config(folder, model_max_length=MAX_TOKENS)


def save_sentencepiece_with_markers(folder: Path) -> None:
    """XLM-R's, with the markers of queries and documents of jina-colbert-v2 behind its last token."""
    save_sentencepiece(folder)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.add_tokens(list(JINA_MARKERS), special_tokens=True)
    tokenizer.save_pretrained(folder)


def save_roberta(folder: Path) -> None:
    """RoBERTa's: pieces of bytes between `<s>` and `</s>`, two of the latter between the texts of a pair."""
    tokenizer = _build_byte_level("<s>", "<pad>", "</s>", "<unk>", last=("<mask>",))
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), add_prefix_space=False, trim_offsets=True
    )
    _save(tokenizer, folder, bos="<s>", eos="</s>", pad="<pad>", cls_token="<s>", sep_token="</s>")


def save_qwen(folder: Path, *, adds_eos: bool = True) -> None:
    """Qwen's: pieces of bytes, the special tokens behind them; `<|endoftext|>` behind a text by the post-processor."""
    tokenizer = _build_byte_level(last=("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    eos = tokenizer.token_to_id("<|endoftext|>")
    if adds_eos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="$A <|endoftext|>", pair="$A $B <|endoftext|>", special_tokens=[("<|endoftext|>", eos)]
        )
    _save(tokenizer, folder, eos="<|endoftext|>", pad="<|endoftext|>", padding_side="left")


def save_qwen_without_eos(folder: Path) -> None:
    save_qwen(folder, adds_eos=False)


def save_llama(folder: Path, *, adds_eos: bool = False, max_length: int = MAX_TOKENS) -> None:
    """Llama's: `<s>` before a text; with `adds_eos` and the key of that name `</s>` behind it."""
    tokenizer = _build_byte_level("<unk>", "<s>", "</s>")
    single, pair = ("<s> $A </s>", "<s> $A </s> <s> $B </s>") if adds_eos else ("<s> $A", "<s> $A <s> $B")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    _save(tokenizer, folder, bos="<s>", eos="</s>", pad="</s>", padding_side="left")
    _edit_config(folder, model_max_length=max_length)


def save_llama_with_eos(folder: Path) -> None:
    save_llama(folder, adds_eos=True)


def ask_for_eos(folder: Path) -> None:
    """Move the end token from the template into `add_eos_token`, as Mistral's embedding models have it."""
    save_llama(folder)
    _edit_config(folder, tokenizer_class="LlamaTokenizer", add_bos_token=True, add_eos_token=True)


def save_gemma(folder: Path, *, max_length: int = MAX_TOKENS) -> None:
    """Gemma's: a text between `<bos>` and `<eos>`."""
    tokenizer = _build_byte_level("<pad>", "<eos>", "<bos>", "<unk>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", pair="<bos> $A <eos> $B <eos>", special_tokens=[("<bos>", 2), ("<eos>", 1)]
    )
    _save(tokenizer, folder, bos="<bos>", eos="<eos>", pad="<pad>")
    _edit_config(folder, model_max_length=max_length)


def save_t5(folder: Path) -> None:
    """T5's: `</s>` behind a text."""
    tokenizer = _build_byte_level("<pad>", "</s>", "<unk>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    _save(tokenizer, folder, eos="</s>", pad="<pad>")


def _build_byte_level(*first: str, last: tuple[str, ...] = ()) -> Tokenizer:
    """Bytes and a few merged ones between special tokens. Without unknown ones, since every byte has its piece."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [
        ("t", "h"),
        ("th", "e"),
        ("Ġ", "the"),
        ("w", "o"),
        ("wo", "r"),
        ("s", "i"),
        ("Y", "e"),
        ("Ye", "s"),
    ]
    tokens = [*first, *alphabet, *("".join(two) for two in merges), *last]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens([*first, *last])
    return tokenizer


def _save(
    tokenizer: Tokenizer, folder: Path, *, pad: str, eos: str, bos: str | None = None, **more: str
) -> None:
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=pad,
        eos_token=eos,
        bos_token=bos,
        model_max_length=MAX_TOKENS,
        **more,
    ).save_pretrained(folder)


def _edit_config(folder: Path, **changes: object) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
