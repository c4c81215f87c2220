"""`embedserve convert`: writes a model as ONNX into the store."""

from __future__ import annotations

import json
from typing import TextIO

from embedserve_runtime.config import RuntimeConfig
from embedserve_runtime.conversion.converting import convert
from embedserve_runtime.telemetry.termination import write_termination_result


def run(config: RuntimeConfig, out: TextIO) -> int:
    """Convert the model and print the result; return the exit code. Raises EmbedserveError."""
    result = {"conversion": convert(config)}
    write_termination_result(config.termination_log, result)
    out.write(json.dumps(result, indent=2) + "\n")
    return 0
