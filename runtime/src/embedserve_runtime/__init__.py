"""The Embedserve runtime: reads a model folder, batches by tokens, serves vectors."""

from importlib.metadata import version

__version__ = version("embedserve-runtime")
