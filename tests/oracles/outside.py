"""FlagEmbedding, PyLate, mxbai-rerank and transformers 4 themselves: they need older packages than ours, so they run in
an environment of their own (`make oracles`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

PYTHON = Path(sys.prefix) / "oracles" / "bin" / "python"
SCRIPT = Path(__file__).with_name("outside_oracles.py")
CENSUS_SCRIPT = Path(__file__).with_name("census_oracles.py")

# Starting them takes seconds each.
needs_oracles = [
    pytest.mark.thorough,
    pytest.mark.skipif(not PYTHON.exists(), reason="`make oracles` installs them"),
]


def answers(asks: Sequence[Mapping[str, Any]], script: Path = SCRIPT) -> list[Any]:
    """What an oracle of the script says to each ask, in one process. Fails with what it wrote where it fails."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    # The tests' own path would put newer packages before those of the oracles.
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [PYTHON, script], check=False, input=json.dumps(asks), text=True, capture_output=True, env=environment
    )
    assert done.returncode == 0, done.stderr[-4000:]
    results: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return results
