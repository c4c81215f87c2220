"""Defines the EmbeddingService resource as users write it."""
