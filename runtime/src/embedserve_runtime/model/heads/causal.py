"""Rerankers that are causal language models: a written prompt asks whether the document answers the query, and the
score compares the logits of "yes" and "no" as its next token.

Sources: the model card of Qwen3-Reranker; LogitScore of sentence-transformers 6.2. The difference of two logits is one
product with the difference of their rows of the output layer, and its sigmoid is the softmax over the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from embedserve_runtime.errors import ModelInvalid, UnsupportedArchitecture
from embedserve_runtime.model.files import FileModel, ModelFiles
from embedserve_runtime.model.heads.classifiers import choose_score_function
from embedserve_runtime.model.heads.config import HeadSource
from embedserve_runtime.model.heads.description import ClassifierHead, HeadLayer, PromptTemplate
from embedserve_runtime.model.modules import LogitScoreFile
from embedserve_runtime.model.pipeline import Pooling
from embedserve_runtime.model.vocabulary import TOKENIZER_FILE, read_token_ids

SUFFIX = "ForCausalLM"


@dataclass(frozen=True, slots=True)
class Reranker:
    """How a kind of reranker asks. yes, no: the tokens whose logits are compared."""

    template: PromptTemplate
    yes: str
    no: str


QWEN3 = Reranker(
    PromptTemplate(
        parts=(
            "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
            'Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n',
            "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}",
            "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        ),
        instruction="Given a web search query, retrieve relevant passages that answer the query",
    ),
    yes="yes",
    no="no",
)
# By `architectures` of config.json.
RERANKERS: Mapping[str, Reranker] = MappingProxyType({"Qwen3ForCausalLM": QWEN3})


class _TokenizerConfigFile(FileModel):
    chat_template: str | None = None


def describe_causal_head(
    source: HeadSource, architecture: str, module: LogitScoreFile | None, cross_encoder: str | None
) -> ClassifierHead:
    """The head of a causal model. module: the folder's LogitScore module, if it has one; cross_encoder: as for
    `describe_classifier_head`.

    Raises UnsupportedArchitecture or ModelInvalid.
    """
    reranker = RERANKERS.get(architecture)
    if reranker is None:
        raise UnsupportedArchitecture(
            f"{source.path}: no way is known how {architecture} ranks; supported: {', '.join(RERANKERS)}"
        )
    files = source.files
    if module is None:
        ids = read_token_ids(files)
        missing = [token for token in (reranker.yes, reranker.no) if token not in ids]
        if missing:
            raise ModelInvalid(
                f"{files.path / TOKENIZER_FILE}: lacks the token {' and '.join(missing)}, which the score is made of"
            )
        rows: tuple[int, ...] = (ids[reranker.yes], ids[reranker.no])
    else:
        _check_chat_template(files, reranker.template)
        rows = (module.true_token_id,)
        rows += () if module.false_token_id is None else (module.false_token_id,)
    return ClassifierHead(
        Pooling.LAST,
        (_describe_rows(source, rows),),
        ("LABEL_0",),
        choose_score_function(source, 1, cross_encoder),
        template=reranker.template,
    )


def _describe_rows(source: HeadSource, rows: tuple[int, ...]) -> HeadLayer:
    vocabulary = source.encoder.embeddings.vocabulary
    outside = [row for row in rows if not 0 <= row < vocabulary]
    if outside:
        raise ModelInvalid(
            f"{source.path}: the score is made of token {outside[0]}, the vocabulary has {vocabulary}"
        )
    names = source.encoder.parameter_names
    tied = [
        prefix + word.tensor for prefix in names.prefixes for word in names.sources["embeddings.word.weight"]
    ]
    return HeadLayer(source.hidden, 1, ("lm_head.weight", *tied), (), rows=rows)


def _check_chat_template(files: ModelFiles, template: PromptTemplate) -> None:
    """sentence-transformers asks with the folder's chat template, a program. It is taken for the one that we know if
    it has its texts."""
    file = files.find("chat_template.jinja")
    config = files.parse_if_there("tokenizer_config.json", _TokenizerConfigFile, _TokenizerConfigFile())
    program = config.chat_template if file is None else file.as_text()
    if program is None or not all(text in program.replace("\\n", "\n") for text in template.texts):
        raise UnsupportedArchitecture(
            f"{files.path}: LogitScore with "
            f"{'no chat template' if program is None else 'a chat template of its own'} is not supported; supported "
            f"is the template of {', '.join(RERANKERS)}"
        )
