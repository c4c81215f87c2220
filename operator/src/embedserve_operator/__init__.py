"""The Embedserve operator: turns EmbeddingService resources into running embedding servers."""

__version__ = "0.1.0"
