"""The engine on torch, which assembles packed operations from the description of an encoder."""
