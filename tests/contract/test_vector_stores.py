"""The examples of vector stores, run as they stand against live servers: what a store finds is what vectors say."""

from __future__ import annotations

import json
import runpy
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from embedserve_runtime.forward.arrays import FloatArray
from tests.contract.outside import PYTHON
from tests.runtime.heads.test_late_interaction import Kind, saved
from tests.support.models import minilm_folder, splade_folder
from tests.support.server_process import start_server

EXAMPLES = Path(__file__).parents[2] / "examples" / "vector_stores"
# Stores keep float32 and add in another order.
SCORE_TOLERANCE = 1e-4
pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Addresses by what the model gives: real weights, and random ones for multi-vectors."""
    torch.manual_seed(1)
    colbert = saved(tmp_path_factory.mktemp("colbert"), Kind(prompts={"query": "query: "}))
    folder = tmp_path_factory.mktemp
    sparse = {"model": {"source": str(splade_folder()), "task": "sparse"}}
    with (
        start_server(minilm_folder(), folder("dense")) as dense,
        start_server(splade_folder(), folder("sparse"), sparse) as splade,
        start_server(colbert, folder("multi")) as multi,
    ):
        for server in (dense, splade, multi):
            server.wait_until_ready()
        yield {"dense": dense.address, "sparse": splade.address, "multi_vector": multi.address}


def ran(example: str, address: str) -> Any:
    done = subprocess.run(
        [PYTHON, "-W", "ignore", EXAMPLES / f"{example}.py", address],
        check=False,
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def texts() -> tuple[list[str], str]:
    """The examples' own."""
    own = runpy.run_path(str(EXAMPLES / "embed.py"))
    return list(own["TEXTS"]), own["QUERY"]


def scores(kind: str, address: str) -> dict[str, float]:
    """By text, computed here from what the server gives."""
    documents, query = texts()

    def encoded(inputs: list[str], role: str) -> Any:
        body = {"inputs": inputs, "input_type": role}
        return httpx.post(f"{address}/v1/encode", json=body, timeout=60).json()[kind]

    (asked,) = encoded([query], "query")
    return {
        text: similarity(kind, asked, given)
        for text, given in zip(documents, encoded(documents, "document"), strict=True)
    }


def similarity(kind: str, query: Any, document: Any) -> float:
    match kind:
        case "sparse":
            weights = dict(zip(document["indices"], document["values"], strict=True))
            pairs = zip(query["indices"], query["values"], strict=True)
            return float(sum(value * weights.get(index, 0.0) for index, value in pairs))
        case "multi_vector":
            products: FloatArray = np.array(query) @ np.array(document).T
            return float(products.max(axis=1).sum())
        case _:
            return float(np.array(query) @ np.array(document))


SEARCHES = [
    ("qdrant", "dense"),
    ("qdrant", "sparse"),
    ("qdrant", "multi_vector"),
    ("milvus", "dense"),
    ("milvus", "sparse"),
    ("postgresql", "dense"),
    ("postgresql", "sparse"),
]


@pytest.mark.parametrize(("example", "kind"), SEARCHES)
def test_a_store_finds_texts_by_the_scores_of_their_vectors(
    example: str, kind: str, servers: dict[str, str]
) -> None:
    want = scores(kind, servers[kind])
    found = ran(example, servers[kind])
    got = dict(found)
    # Stores leave out what shares no entry with the query.
    assert got == pytest.approx(
        {text: score for text, score in want.items() if text in got}, abs=SCORE_TOLERANCE
    )
    assert [text for text, _ in found] == sorted(got, key=lambda text: -want[text])
    assert all(want[text] == 0 for text in want.keys() - got.keys())


def test_requests_to_opensearch_carry_weights_whose_products_are_the_scores(servers: dict[str, str]) -> None:
    requests = ran("opensearch", servers["sparse"])
    assert requests["PUT texts"]["mappings"]["properties"]["tokens"] == {"type": "rank_features"}
    weights = requests["POST texts/_search"]["query"]["neural_sparse"]["tokens"]["query_tokens"]
    got = {
        document["text"]: sum(
            weight * document["tokens"].get(token, 0.0) for token, weight in weights.items()
        )
        for document in requests["POST texts/_doc"]
    }
    assert got == pytest.approx(scores("sparse", servers["sparse"]), abs=SCORE_TOLERANCE)
    assert all("." not in token and weight > 0 for token, weight in weights.items())


def test_every_example_is_run_here() -> None:
    modules = {path.stem for path in EXAMPLES.glob("*.py")} - {"embed"}
    assert modules == {example for example, _ in SEARCHES} | {"opensearch"}
