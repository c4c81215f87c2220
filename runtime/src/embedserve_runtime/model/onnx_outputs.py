"""Lists the outputs that a standard ONNX file of a model can have: the names that `onnx.outputs` takes."""

from __future__ import annotations

from typing import Final

from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.heads.description import ClassifierHead, LexicalHead, SparseHead

HIDDEN: Final = "last_hidden_state"
SENTENCE_EMBEDDING: Final = "sentence_embedding"
LOGITS: Final = "logits"


def list_onnx_outputs(card: ModelCard) -> tuple[str, ...]:
    """Return the outputs of a standard ONNX file, in the order of the names above; none where it cannot be written."""
    if card.backbone is not None or card.has_attention_mask:
        return ()
    heads = (card.head, *card.token_heads)
    # One pooling for all inputs, over all tokens: an attention mask cannot express input roles or prompts.
    pools = card.head is None and not card.shares_encoder and card.pipeline.include_prompt
    gives_logits = any(isinstance(head, ClassifierHead | SparseHead | LexicalHead) for head in heads)
    return (HIDDEN, *([SENTENCE_EMBEDDING] if pools else []), *([LOGITS] if gives_logits else []))
