"""Remembers what the watches have seen in the cluster."""
