"""Typed views of the objects that the API server sends: of each kind, the fields that the operator reads."""
