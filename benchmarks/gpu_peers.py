"""The same texts through sentence-transformers' `encode` and through our tokenizer, engine and heads, on one GPU.

    python -m benchmarks.gpu_peers

BERT-base shape with random weights, bfloat16 on both sides, texts of words that are one token each; both tokenize, pool
and normalize. Prints texts and tokens a second, medians over the rounds, and their ratio. Needs torch with CUDA and
sentence-transformers.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling as PeerPooling
from sentence_transformers.models import Transformer
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from benchmarks.gpu import Loaded
from benchmarks.gpu_shapes import BERT_BASE, VOCABULARY, Lengths
from benchmarks.packing import log_uniform
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.heads.dense import normalize
from embedserve_runtime.model import families
from embedserve_runtime.model.checkpoint import Checkpoint, Weights
from embedserve_runtime.model.folder import read_folder

ROUNDS = 7
WORK: dict[str, Lengths] = {
    "mixed, 5 to 500": log_uniform(256, 5, 500),
    "512": np.full(128, 512),
}
BATCHES = (32, 128, 256)


def word_tokenizer() -> Tokenizer:
    """A vocabulary of made-up words, with BERT's special tokens around each text."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{number}" for number in range(VOCABULARY - 4))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


def seconds(work: Callable[[], object]) -> float:
    work()
    taken = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return median(taken)


def main() -> None:
    tokenizer = word_tokenizer()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        BERT_BASE.save(folder)
        PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", model_max_length=512
        ).save_pretrained(folder)
        exact, peer = (
            SentenceTransformer(modules=[Transformer(str(folder)), PeerPooling(768)], device="cuda").to(dtype)
            for dtype in (torch.float32, torch.bfloat16)
        )
        encoder = families.describe(read_folder(folder))
        ours = Loaded(encoder, Weights(encoder, Checkpoint.open(folder)), BERT_BASE, torch.bfloat16)

    def encode(texts: list[str]) -> FloatArray:
        ids = [np.array(one.ids, dtype=np.int32) for one in tokenizer.encode_batch_fast(texts)]
        return normalize(ours.run(PackedBatch.pack(ids)))

    source = np.random.default_rng(0)
    for title, lengths in WORK.items():
        texts = [" ".join(f"w{n}" for n in source.integers(0, VOCABULARY - 4, n - 2)) for n in lengths]
        tokens = int(lengths.sum())
        mine = tokens / seconds(lambda texts=texts: encode(texts))  # type: ignore[misc]
        theirs = {
            batch: tokens
            / seconds(
                lambda texts=texts, batch=batch: peer.encode(  # type: ignore[misc]
                    texts, batch_size=batch, normalize_embeddings=True, show_progress_bar=False
                )
            )
            for batch in BATCHES
        }
        want = exact.encode(texts, normalize_embeddings=True, show_progress_bar=False)
        cosine = float((encode(texts) * want).sum(axis=1).min())
        best = max(theirs.values())
        listed = ", ".join(f"{rate / 1e6:.3f} (batch {batch})" for batch, rate in theirs.items())
        print(f"{title}: ours {mine / 1e6:.3f} M tok/s, sentence-transformers {listed}")
        print(f"{title}: {mine / best:.1f} x, least cosine to its float32 {cosine:.5f}")


if __name__ == "__main__":
    main()
