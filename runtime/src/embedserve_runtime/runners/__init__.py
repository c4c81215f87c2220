"""Runs a loaded model, its engine with its heads, in one call."""
