"""The Embedserve runtime: reads a model folder, batches by tokens, serves vectors."""

import os
from importlib.metadata import version

# Read by ONNX Runtime when it is loaded. Without it official builds report sessions, names and hashes of models to
# their maker (since 1.29, on Linux too).
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__version__ = version("embedserve-runtime")
