"""Builders of child objects: resource and settings in, one plain object out. One file a kind."""
