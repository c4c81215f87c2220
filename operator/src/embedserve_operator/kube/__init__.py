"""Speaks to the Kubernetes API server."""
