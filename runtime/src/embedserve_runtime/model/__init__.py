"""Describes a model from its files."""
