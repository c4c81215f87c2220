"""Folders of dense models: an encoder of the census, and the modules behind it as sentence-transformers 2 to 5 wrote
them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer

from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.model.heads.description import Task
from embedserve_runtime.runners.base import Runner
from embedserve_runtime.tokenizing import TextTokenizer
from tests.census import tokenizers
from tests.census.built import Built, Results
from tests.census.encoders import ENCODERS, HIDDEN, EncoderKind, save_encoder
from tests.census.foreign import FOREIGN
from tests.census.jina_v5 import BACKBONES, PROMPTS, merge_jina_v5, save_jina_v5
from tests.census.layouts import WEIGHTS, write_json
from tests.census.repositories import Kind
from tests.census.tokenizers import MAX_TOKENS
from tests.runtime.engines.case import Reference
from tests.runtime.engines.jina_cases import build_jina
from tests.runtime.engines.nomic_cases import build_mixture
from tests.runtime.pipelines.folders import CUT, TEXTS, embed

PACKAGE = "sentence_transformers.models"
POOLINGS = {
    "cls": "cls_token",
    "mean": "mean_tokens",
    "mean-without-prompt": "mean_tokens",
    "last": "lasttoken",
}
# Words of `Kind.behind`: activation and bias of a Dense module.
DENSE = {
    "dense": ("torch.nn.modules.linear.Identity", True),
    "dense-tanh": ("torch.nn.modules.activation.Tanh", True),
    "dense-nobias": ("torch.nn.modules.linear.Identity", False),
}
MODULES = {"normalize": f"{PACKAGE}.Normalize", "int8": "st_quantize.FlexibleQuantizer"}
# Without a blank at its end, which sentence-transformers counted as part of the prompt only from 5.4 on.
PROMPT = "Represent the sentence:"
# Encoders that transformers has no class for, with a forward pass written for the tests of engines.
OWN_REFERENCES: Mapping[str, Callable[[Path], Reference]] = {
    "jina-bert": build_jina,
    "jina-bert-code": lambda folder: build_jina(folder, code=True),
    "nomic-bert-moe": build_mixture,
}


def build_dense(kind: Kind, folder: Path) -> Built:
    if kind.encoder in OWN_REFERENCES:
        return _build_with_own_reference(kind, folder)
    if kind.encoder in BACKBONES:
        return _build_jina_v5(kind, folder)
    if kind.encoder in FOREIGN:
        FOREIGN[kind.encoder].save(folder)
        if kind.behind != "own":
            write_modules(folder, kind.behind)
        return Built(folder, Task.EMBED)
    twin, published = save_dense(kind.encoder, kind.behind, folder)
    prompt = "instruction" if kind.behind.startswith("mean-without-prompt") else None

    @cache
    def want() -> FloatArray:
        vectors: FloatArray = SentenceTransformer(str(twin), device="cpu").encode(TEXTS, prompt_name=prompt)
        return vectors

    return Built(
        published,
        Task.EMBED,
        "sentence-transformers",
        lambda runner: [embed(runner, TEXTS, prompt)],
        lambda _: [want()],
        twin,
    )


def save_dense(encoder: str, behind: str, folder: Path, *, max_length: int = 40) -> tuple[Path, Path]:
    """Write a model as its loader reads it, and as the repository has it. The arguments are those of a `Kind`."""
    twin = folder / "of_the_loader"
    save_encoder(ENCODERS[encoder], twin)
    write_modules(twin, behind, max_length=max_length)
    return twin, publish(ENCODERS[encoder], twin, folder / "published")


def publish(encoder: EncoderKind, twin: Path, target: Path) -> Path:
    """The folder as the repository has it."""
    if encoder.publish is None:
        return twin
    shutil.copytree(twin, target)
    encoder.publish(target)
    return target


def _build_jina_v5(kind: Kind, folder: Path) -> Built:
    """With the adapter that is merged where no task is named."""
    twin, published = save_jina_v5(kind.encoder, folder)
    write_modules(twin, kind.behind, max_length=MAX_TOKENS)

    @cache
    def want() -> FloatArray:
        merged = merge_jina_v5(published, twin, folder / "merged", "retrieval")
        model = SentenceTransformer(str(merged), device="cpu")
        vectors: FloatArray = model.encode(TEXTS, prompt=PROMPTS["document"])
        return vectors

    return Built(
        published,
        Task.EMBED,
        "transformers, with peft's formula",
        lambda runner: [embed(runner, TEXTS)],
        lambda _: [want()],
    )


def _build_with_own_reference(kind: Kind, folder: Path) -> Built:
    hidden_states = OWN_REFERENCES[kind.encoder](folder)
    tokenizers.save_tiny_wordpiece(folder)
    write_modules(folder, kind.behind)

    def expected(runner: Runner) -> Results:
        sequences = TextTokenizer.from_card(runner.card).encode(TEXTS, "", CUT)
        states = [hidden_states(PackedBatch.pack([np.asarray(one)])) for one in sequences]
        want = np.stack([one.mean(axis=0) for one in states])
        if "normalize" in kind.behind:
            want /= np.linalg.norm(want, axis=1, keepdims=True)
        return [want]

    return Built(
        folder, Task.EMBED, "a forward pass of the tests'", lambda runner: [embed(runner, TEXTS)], expected
    )


def write_modules(folder: Path, behind: str, *, max_length: int = 40) -> None:
    """modules.json and a folder for each module. behind: `Kind.behind`."""
    pooling, *others = behind.split()
    entries = [("", f"{PACKAGE}.Transformer"), ("1_Pooling", f"{PACKAGE}.Pooling")]
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": False})
    write_json(folder / "1_Pooling" / "config.json", _describe_pooling(pooling))
    for number, word in enumerate(others, start=2):
        if word in DENSE:
            entries.append((f"{number}_Dense", f"{PACKAGE}.Dense"))
            _write_dense(folder / f"{number}_Dense", *DENSE[word])
        else:
            entries.append((f"{number}_{word.title()}", MODULES[word]))
    write_json(
        folder / "modules.json",
        [
            {"idx": number, "name": str(number), "path": path, "type": type_}
            for number, (path, type_) in enumerate(entries)
        ],
    )
    if pooling == "mean-without-prompt":
        write_json(folder / "config_sentence_transformers.json", {"prompts": {"instruction": PROMPT}})


def _describe_pooling(word: str) -> dict[str, object]:
    modes = (
        "cls_token",
        "mean_tokens",
        "max_tokens",
        "mean_sqrt_len_tokens",
        "weightedmean_tokens",
        "lasttoken",
    )
    return {
        "word_embedding_dimension": HIDDEN,
        **{f"pooling_mode_{mode}": mode == POOLINGS[word] for mode in modes},
        "include_prompt": word != "mean-without-prompt",
    }


def _write_dense(folder: Path, activation: str, bias: bool) -> None:
    source = torch.Generator().manual_seed(2)
    tensors = {"linear.weight": torch.randn(HIDDEN, HIDDEN, generator=source) * 0.3}
    if bias:
        tensors["linear.bias"] = torch.randn(HIDDEN, generator=source) * 0.3
    write_json(
        folder / "config.json",
        {"in_features": HIDDEN, "out_features": HIDDEN, "bias": bias, "activation_function": activation},
    )
    save_file(tensors, folder / WEIGHTS)
