"""Builds the runners of a model from the settings."""
