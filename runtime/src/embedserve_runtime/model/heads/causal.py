"""Rerankers that are causal language models: a written prompt asks whether the document answers the query, and the
score compares the logits of two answers as its next token, or takes that of one.

Sources: the model card of Qwen3-Reranker; LogitScore of sentence-transformers 6.2. The difference of two logits is one
product with the difference of their rows of the output layer, and its sigmoid is the softmax over the two.
"""

from __future__ import annotations

from embedserve_runtime.errors import ModelInvalid, UnsupportedArchitecture
from embedserve_runtime.model.heads.classifiers import choose_score_function
from embedserve_runtime.model.heads.config import HeadSource
from embedserve_runtime.model.heads.description import ClassifierHead, HeadLayer, PromptTemplate
from embedserve_runtime.model.heads.rerankers import Reranker, list_titles
from embedserve_runtime.model.hf_files.sentence_transformers import LogitScoreConfig
from embedserve_runtime.model.hf_files.tokenizers import TOKENIZER_FILE
from embedserve_runtime.model.modules import ModelLayout
from embedserve_runtime.model.pipeline import Pooling
from embedserve_runtime.model.vocabulary import read_token_ids

SUFFIX = "ForCausalLM"
# What CrossEncoder compares where a folder has a chat template and no LogitScore.
USUAL_ANSWERS = ("yes", "no")


def describe_causal_head(
    source: HeadSource, layout: ModelLayout, template: PromptTemplate | None, reranker: Reranker | None
) -> ClassifierHead:
    """Describe the head of a causal model.

    template: how it asks, None where nothing says it; reranker: the one that it is by its name. Raises
    UnsupportedArchitecture or ModelInvalid.
    """
    module = layout.modules.logit_score
    if template is None:
        raise UnsupportedArchitecture(_describe_lack(source, module))
    if source.config.final_logit_softcapping is not None:
        raise UnsupportedArchitecture(
            f"{source.path}: final_logit_softcapping = {source.config.final_logit_softcapping} is not supported for a "
            "reranker"
        )
    divisor = 1.0 if module is not None or reranker is None else reranker.divisor
    rows = _find_rows(source, reranker) if module is None else _list_rows(module)
    return ClassifierHead(
        Pooling.LAST,
        (_describe_rows(source, rows, divisor),),
        ("LABEL_0",),
        choose_score_function(source, 1, layout.activation),
        template=template,
    )


def _describe_lack(source: HeadSource, module: LogitScoreConfig | None) -> str:
    if module is not None:
        return (
            f"{source.files.path}: LogitScore with no chat template is not supported; add chat_template.jinja with the "
            "roles query and document, and `message` to modality_config of sentence_bert_config.json"
        )
    return (
        f"{source.path}: nothing says in which prompt {source.config.find_architecture(SUFFIX)} ranks, and by which "
        "tokens. Give the folder a chat template with the roles query and document, or a README.md whose `base_model` "
        f"is one of the known rerankers: {list_titles()}"
    )


def _list_rows(module: LogitScoreConfig) -> tuple[int, ...]:
    false_id = module.false_token_id
    return (module.true_token_id,) if false_id is None else (module.true_token_id, false_id)


def _find_rows(source: HeadSource, reranker: Reranker | None) -> tuple[int, ...]:
    """Return the ids of the answers. Raises ModelInvalid where one is not a single token."""
    ids = read_token_ids(source.files)
    answers = USUAL_ANSWERS if reranker is None else (reranker.yes, reranker.no)
    tokens = [answer for answer in answers if answer is not None]
    if missing := [token for token in tokens if token not in ids]:
        raise ModelInvalid(
            f"{source.files.path / TOKENIZER_FILE}: lacks the token {' and '.join(missing)}, which the score is made of"
        )
    return tuple(ids[token] for token in tokens)


def _describe_rows(source: HeadSource, rows: tuple[int, ...], divisor: float) -> HeadLayer:
    vocabulary = source.encoder.embeddings.vocabulary
    outside = [row for row in rows if not 0 <= row < vocabulary]
    if outside:
        raise ModelInvalid(
            f"{source.path}: the score is made of token {outside[0]}, the vocabulary has {vocabulary}"
        )
    names = source.encoder.parameter_names
    tied = [
        prefix + embedding.tensor
        for prefix in names.prefixes
        for embedding in names.sources["embeddings.word.weight"]
    ]
    return HeadLayer(source.hidden, 1, ("lm_head.weight", *tied), (), rows=rows, divisor=divisor)
