"""Run by the interpreter of .venv/oracles, which has FlagEmbedding and PyLate: runs models on the CPU, prints JSON.

python outside_oracles.py < [{"oracle", "folder", ...}, ...]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any


def m3(ask: Mapping[str, Any]) -> Any:
    """All outputs of texts, and all scores of pairs by each of the weights (dense, sparse, ColBERT; null for none)."""
    from FlagEmbedding import BGEM3FlagModel

    model = BGEM3FlagModel(
        ask["folder"],
        use_fp16=False,
        devices="cpu",
        colbert_dim=ask["columns"],
        passage_max_length=ask["max_length"],
    )
    lengths = {"max_query_length": ask["max_length"], "max_passage_length": ask["max_length"]}
    # Batches of two: sequences are padded in them.
    made = model.encode(
        ask["texts"],
        batch_size=2,
        max_length=ask["max_length"],
        return_dense=True,
        return_sparse=True,
        return_colbert_vecs=True,
    )
    return {
        "dense": made["dense_vecs"].tolist(),
        "sparse": [
            {token: float(weight) for token, weight in weights.items()} for weights in made["lexical_weights"]
        ],
        "multi_vectors": [vectors.tolist() for vectors in made["colbert_vecs"]],
        "scores": [
            model.compute_score(ask["pairs"], batch_size=2, weights_for_different_modes=weights, **lengths)
            for weights in ask["weights"]
        ],
    }


def dense(ask: Mapping[str, Any]) -> Any:
    """Vectors of queries, with the instruction before each, and of passages."""
    from FlagEmbedding import FlagModel

    model = FlagModel(
        ask["folder"],
        use_fp16=False,
        devices="cpu",
        query_instruction_for_retrieval=ask["instruction"],
        pooling_method=ask["pooling"],
        query_max_length=ask["max_length"],
        passage_max_length=ask["max_length"],
    )
    return {
        "queries": model.encode_queries(ask["queries"]).tolist(),
        "passages": model.encode_corpus(ask["passages"]).tolist(),
    }


def reranker(ask: Mapping[str, Any]) -> Any:
    """Scores of pairs, as the model gives them and as probabilities."""
    from FlagEmbedding import FlagReranker

    model = FlagReranker(ask["folder"], use_fp16=False, devices="cpu", max_length=ask["max_length"])
    return [model.compute_score(ask["pairs"], normalize=normalize) for normalize in (False, True)]


def pylate(ask: Mapping[str, Any]) -> Any:
    """A ColBERT around the bare encoder in `bare`, saved into `folder`; then what the saved one gives."""
    import torch
    from pylate import models

    torch.manual_seed(3)
    models.ColBERT(ask["bare"], device="cpu", **ask["settings"]).save_pretrained(ask["folder"])
    model = models.ColBERT(ask["folder"], device="cpu")
    pooling = {"pool_factor": ask["pool_factor"], "protected_tokens": ask["protected_tokens"]}
    return {
        "queries": [one.tolist() for one in model.encode(ask["queries"], is_query=True)],
        "documents": [one.tolist() for one in model.encode(ask["documents"], is_query=False)],
        "pooled": [one.tolist() for one in model.encode(ask["documents"], is_query=False, **pooling)],
    }


def lora(ask: Mapping[str, Any]) -> Any:
    """A random adapter for the bare encoder in `bare`, saved into the pipeline in `folder`; then what
    sentence-transformers makes of the pipeline, with and without peft's own merging."""
    import torch
    from peft import LoraConfig, get_peft_model
    from sentence_transformers import SentenceTransformer
    from transformers import AutoModel

    torch.manual_seed(3)
    model = get_peft_model(AutoModel.from_pretrained(ask["bare"]), LoraConfig(**ask["settings"]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name or "modules_to_save" in name or parameter.requires_grad:
                parameter.normal_(std=0.3)
    model.save_pretrained(ask["folder"])
    served = SentenceTransformer(ask["folder"], device="cpu")
    return {"served": served.encode(ask["texts"]).tolist(), "merged": _merged(model, ask["texts"], served)}


def _merged(model: Any, texts: Any, served: Any) -> Any:
    served[0].auto_model = model.merge_and_unload().eval()
    return served.encode(texts).tolist()


def tokenizer(ask: Mapping[str, Any]) -> Any:
    """Token ids of texts; the error where the tokenizer cannot be had."""
    from transformers import AutoTokenizer

    try:
        made = AutoTokenizer.from_pretrained(ask["folder"])
    except ValueError as error:
        return str(error)
    return [made(text)["input_ids"] for text in ask["texts"]]


ORACLES: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    function.__name__: function for function in (m3, dense, reranker, pylate, lora, tokenizer)
}


if __name__ == "__main__":
    print(json.dumps([ORACLES[ask["oracle"]](ask) for ask in json.load(sys.stdin)]))
