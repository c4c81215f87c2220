"""Decides which resource is worked on next."""
