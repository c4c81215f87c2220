"""Tiny static embedding models, saved by model2vec and by sentence-transformers themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from model2vec import StaticModel
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

WORDS = (
    "cat",
    "sleeps",
    "window",
    "warm",
    "extraordinary",
    "a",
    "the",
    "##s",
    "##ing",
    ".",
    "sun",
    "revenue",
)
TEXTS = (
    "The cat sleeps.",
    "cat",
    "zebra quagga",  # no token is known
    "The zebra sleeps in the sun.",
    " ",  # no token at all
    "warm sun " * 9,
    "extraordinary " * 30,  # cut by characters before it is cut by tokens
    "windows",
)
DIMENSIONS = 7


def wordpiece() -> Tokenizer:
    """Puts special tokens around a text, which static models must not see; was saved with padding."""
    vocabulary = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS)
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    tokenizer.enable_padding(pad_token="[PAD]", length=16)
    return tokenizer


def unigram() -> Tokenizer:
    """Names its unknown token by id."""
    pieces = [("<pad>", 0.0), ("<unk>", 0.0), *((f"▁{word}", -2.0) for word in WORDS), ("s", -3.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=1, byte_fallback=False))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


def bpe() -> Tokenizer:
    """Knows no unknown token: what it cannot spell is left out."""
    letters = {letter: i for i, letter in enumerate("acegilnoprstuvwxy")}
    merged = {**letters, "ca": len(letters), "cat": len(letters) + 1}
    tokenizer = Tokenizer(models.BPE(merged, [("c", "a"), ("ca", "t")]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


@dataclass(frozen=True)
class Saved:
    """How a Model2Vec folder is made. Rows are drawn at random; `shared` many where a mapping shares them."""

    tokenizer: Callable[[], Tokenizer] = wordpiece
    dtype: str = "float32"
    weights: bool = False
    shared: int | None = None
    normalize: bool = True
    max_length: int | None = 512

    def save(self, folder: Path) -> StaticModel:
        source = np.random.default_rng(0)
        tokenizer = self.tokenizer()
        tokens = tokenizer.get_vocab_size()
        table = source.standard_normal((self.shared or tokens, DIMENSIONS)) * (
            9 if self.dtype == "int8" else 1
        )
        model = StaticModel(
            table.astype(self.dtype),
            tokenizer,
            normalize=self.normalize,
            max_length=self.max_length,
            weights=source.random(tokens).astype(np.float32) if self.weights else None,
            token_mapping=source.integers(0, self.shared, tokens) if self.shared else None,
        )
        model.save_pretrained(folder)
        return StaticModel.from_pretrained(folder)


MODEL2VEC: Mapping[str, Saved] = {
    "WordPiece": Saved(),
    "Unigram, not normalized": Saved(unigram, normalize=False),
    "BPE without an unknown token": Saved(bpe),
    "int8": Saved(dtype="int8"),
    "float64": Saved(dtype="float64"),
    "weights": Saved(weights=True),
    "shared rows": Saved(shared=5),
    "shared int8 rows with weights": Saved(unigram, dtype="int8", shared=5, weights=True),
    "a short maximum": Saved(max_length=5),
    "no maximum": Saved(max_length=None),
}


def sentence_transformer(
    folder: Path, *, normalize: bool, truncation: int | None = None
) -> SentenceTransformer:
    """A StaticEmbedding module in its own folder or the root, as sentence-transformers saves it."""
    tokenizer = wordpiece()
    if truncation is not None:
        tokenizer.enable_truncation(truncation)
    table = np.random.default_rng(1).standard_normal(
        (tokenizer.get_vocab_size(), DIMENSIONS), dtype=np.float32
    )
    modules = [StaticEmbedding(tokenizer, embedding_weights=table), *([Normalize()] if normalize else [])]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(folder), create_model_card=False)
    return SentenceTransformer(str(folder), device="cpu")
