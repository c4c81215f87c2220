"""Runs a loaded model, its engine with its heads, behind one call."""
