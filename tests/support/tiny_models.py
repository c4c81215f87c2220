"""A tokenizer of a few words, and cards of models that have it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from embedserve_runtime.model.architecture import Embeddings, Encoder
from embedserve_runtime.model.card import ModelCard, TokenizerSettings
from embedserve_runtime.model.heads.description import (
    ClassifierHead,
    Head,
    HeadLayer,
    ScoreFunction,
    SparseHead,
    SparsePooling,
    Task,
)
from embedserve_runtime.model.parameter_names import ParameterNames
from embedserve_runtime.model.pipeline import Pipeline, Pooling
from embedserve_runtime.tokenizing import TextTokenizer

WORDS = (
    "hello",
    "world",
    "a",
    "vector",
    "is",
    "list",
    "of",
    "numbers",
    "query",
    "passage",
    "deep",
    "learning",
)
VOCABULARY = (
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    ":",
    ".",
    ",",
    "?",
    "##s",
    *WORDS,
    *"bcdefghijklmnopqrstuvwxyz",
)
CLS, SEP = 2, 3
SPACE = "vs2-0123456789abcdef0123"
DIMENSIONS = 8


def build_tiny_wordpiece() -> Tokenizer:
    """Build BERT's pipeline with a vocabulary of a few words."""
    tokenizer = Tokenizer(
        models.WordPiece({word: index for index, word in enumerate(VOCABULARY)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", SEP), ("[CLS]", CLS))
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    return tokenizer


def build_tokenizer_settings(tokenizer: Tokenizer, *, lowercase: bool = False) -> TokenizerSettings:
    max_token_id = max(tokenizer.get_vocab().values())
    return TokenizerSettings(tokenizer.to_str().encode(), "unused", max_token_id, lowercase)


def build_tiny_tokenizer(max_length: int = 32) -> TextTokenizer:
    return TextTokenizer(build_tiny_wordpiece(), max_length, len(VOCABULARY))


def build_card(
    *,
    dimensions: int = DIMENSIONS,
    full_dimensions: int | None = None,
    max_length: int = 32,
    normalize: bool = True,
    prompts: Mapping[str, str] | None = None,
    default_prompt: str | None = None,
    task: Task = Task.EMBED,
    head: Head | None = None,
) -> ModelCard:
    encoder = Encoder(
        family="bert",
        hidden_size=dimensions,
        max_positions=max_length,
        embeddings=Embeddings(vocabulary=len(VOCABULARY), positions=None, token_types=0, norm=None),
        layers=(),
        final_norm=None,
        parameter_names=ParameterNames((), {}),
    )
    return ModelCard(
        source="tiny",
        revision="local",
        encoder=encoder,
        pipeline=Pipeline((Pooling.MEAN,), (), normalize, dimensions, full_dimensions or dimensions),
        max_length=max_length,
        own_max_length=max_length,
        tokenizer=build_tokenizer_settings(build_tiny_wordpiece()),
        prompts=prompts or {},
        default_prompt=default_prompt,
        vector_space=SPACE,
        task=task,
        head=head,
    )


def build_classifier_card(*labels: str, scores: ScoreFunction = ScoreFunction.SOFTMAX) -> ModelCard:
    """Build the card of a classifier, or with one label of a reranker, whose rows are as wide."""
    layer = HeadLayer(DIMENSIONS, len(labels), ("unused",), ())
    task = Task.RERANK if len(labels) == 1 else Task.CLASSIFY
    return build_card(
        dimensions=len(labels), task=task, head=ClassifierHead(Pooling.CLS, (layer,), labels, scores)
    )


def build_splade_card() -> ModelCard:
    """Build the card of a model that makes sparse vectors over the whole vocabulary."""
    layer = HeadLayer(DIMENSIONS, len(VOCABULARY), ("unused",), ())
    return build_card(
        dimensions=len(VOCABULARY), task=Task.SPARSE, head=SparseHead((layer,), SparsePooling.MAX)
    )


def build_card_with_tokenizer(tokenizer: Tokenizer, *, lowercase: bool) -> ModelCard:
    return replace(build_card(), tokenizer=build_tokenizer_settings(tokenizer, lowercase=lowercase))
