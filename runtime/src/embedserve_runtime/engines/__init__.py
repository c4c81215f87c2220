"""Runs packed token ids through an encoder to packed hidden states."""
