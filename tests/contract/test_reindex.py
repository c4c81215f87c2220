"""The example that keeps an index for each vector space, run as written, over a change of the model."""

from __future__ import annotations

import json
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.contract.outside import PYTHON
from tests.support.models import minilm_folder
from tests.support.server_process import start_server

pytestmark = pytest.mark.thorough

EXAMPLE = Path(__file__).parents[2] / "examples" / "qdrant" / "index.py"
TEXTS = [
    "A vector is a list of numbers.",
    "Cats sleep most of the day.",
    "Bread is baked from flour and water.",
]
QUESTION = "What is a vector?"


def test_a_new_index_is_filled_while_the_old_one_is_searched_and_no_query_meets_vectors_of_another_space(
    tmp_path: Path,
) -> None:
    documents = tmp_path / "documents.jsonl"
    documents.write_text(
        "".join(f"{json.dumps({'id': number, 'text': text})}\n" for number, text in enumerate(TEXTS))
    )

    def index(*words: str) -> list[str]:
        done = subprocess.run(
            [PYTHON, EXAMPLE, *words], cwd=tmp_path, check=False, text=True, capture_output=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    with ExitStack() as stack:
        old, new = (_served(stack, tmp_path, pooling) for pooling in ("mean", "cls"))
        (first,) = index("fill", old, str(documents))
        (second,) = index("fill", new, str(documents))
        assert first != second
        assert index("fill", new, str(documents)) == [second], "again is no harm"
        for url in (old, new):
            best, *others = index("search", url, QUESTION)
            assert best.endswith(TEXTS[0])
            assert len(others) == 2


def _served(stack: ExitStack, folder: Path, pooling: str) -> str:
    home = folder / pooling
    home.mkdir()
    server = stack.enter_context(start_server(minilm_folder(), home, {"model": {"pooling": pooling}}))
    server.wait_until_ready()
    return server.address
