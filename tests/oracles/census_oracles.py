"""Run by the interpreter of .venv/oracles: the loaders that authors of models recommend, over many folders in one
process. Prints JSON: for each ask {"results": arrays} or {"error": words}.

python census_oracles.py < [{"oracle", "folder", ...}, ...]
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

Ask = Mapping[str, Any]


def sentence_transformers(ask: Ask) -> Any:
    """Vectors of texts, with the prompt of that name."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(ask["folder"], device="cpu")
    return [model.encode(ask["texts"], prompt_name=ask.get("prompt_name"))]


def cross_encoder(ask: Ask) -> Any:
    """Scores of pairs."""
    from sentence_transformers import CrossEncoder

    return [CrossEncoder(ask["folder"], device="cpu").predict(ask["pairs"])]


def sparse_encoder(ask: Ask) -> Any:
    """Weights of texts over the vocabulary: as they are, or as documents and as queries."""
    from sentence_transformers import SparseEncoder

    model = SparseEncoder(ask["folder"], device="cpu")
    encoders = [model.encode_document, model.encode_query] if ask["asymmetric"] else [model.encode]
    return [encode(ask["texts"], convert_to_sparse_tensor=False).numpy() for encode in encoders]


def pylate(ask: Ask) -> Any:
    """Vectors of the tokens of each text as a document, then of each as a query."""
    from pylate import models

    model = models.ColBERT(ask["folder"], device="cpu")
    return [one for is_query in (False, True) for one in model.encode(ask["texts"], is_query=is_query)]


def flag_dense(ask: Ask) -> Any:
    """Vectors of passages by a class of FlagEmbedding, which its authors name for the model."""
    import FlagEmbedding

    model = getattr(FlagEmbedding, ask["class"])(
        ask["folder"], use_fp16=False, devices="cpu", passage_max_length=ask["max_length"]
    )
    if ask["attention"]:
        model.model.set_attn_implementation(ask["attention"])
    return [model.encode_corpus(ask["texts"])]


def flag_m3(ask: Ask) -> Any:
    """Dense vectors, weights of token ids [texts, vocabulary] and vectors of tokens."""
    import numpy as np
    from FlagEmbedding import BGEM3FlagModel

    model = BGEM3FlagModel(ask["folder"], use_fp16=False, devices="cpu", colbert_dim=ask["columns"])
    made = model.encode(ask["texts"], return_dense=True, return_sparse=True, return_colbert_vecs=True)
    weights = np.zeros((len(ask["texts"]), ask["vocabulary"]))
    for row, of_tokens in zip(weights, made["lexical_weights"], strict=True):
        for token, weight in of_tokens.items():
            row[int(token)] = weight
    return [made["dense_vecs"], weights, *made["colbert_vecs"]]


def flag_llm_reranker(ask: Ask) -> Any:
    """Scores of pairs as probabilities."""
    import numpy as np
    from FlagEmbedding import FlagLLMReranker

    model = FlagLLMReranker(ask["folder"], use_fp16=False, devices="cpu")
    return [np.array(model.compute_score(ask["pairs"], normalize=True))]


def mxbai_rerank(ask: Ask) -> Any:
    """Scores of pairs as probabilities: the package gives the difference of two logits."""
    import torch
    from mxbai_rerank import MxbaiRerankV2

    model = MxbaiRerankV2(ask["folder"], device="cpu", torch_dtype="float32")
    queries, documents = zip(*ask["pairs"], strict=True)
    return [torch.sigmoid(model.predict(list(queries), list(documents))).numpy()]


ORACLES: dict[str, Callable[[Ask], Any]] = {
    function.__name__: function
    for function in (
        sentence_transformers,
        cross_encoder,
        sparse_encoder,
        pylate,
        flag_dense,
        flag_m3,
        flag_llm_reranker,
        mxbai_rerank,
    )
}


def answer(ask: Ask) -> dict[str, Any]:
    """What the loader makes of the folder; what it says if it cannot load it, which is a result, too."""
    try:
        return {"results": [array.tolist() for array in ORACLES[ask["oracle"]](ask)]}
    except (ImportError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    # Some of them print to stdout while they load.
    with contextlib.redirect_stdout(sys.stderr):
        answers = [answer(ask) for ask in json.load(sys.stdin)]
    print(json.dumps(answers))
