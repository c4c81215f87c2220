"""Clients whose dependencies do not go with ours, run in an environment of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PYTHON = Path(sys.prefix) / "clients" / "bin" / "python"
SCRIPT = Path(__file__).with_name("outside_clients.py")


def outside(asks: Sequence[Mapping[str, Any]]) -> list[Any]:
    """What each client got: its result, or {"error", "message"} of the exception that it raised.

    One process for all, since importing litellm takes seconds.
    """
    # litellm would otherwise fetch its list of prices from the internet, and try three times.
    environment = os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = subprocess.run(
        [PYTHON, SCRIPT], check=False, input=json.dumps(asks), text=True, capture_output=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    results: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return results
