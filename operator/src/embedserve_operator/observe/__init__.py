"""Turns received objects into the observed state of one resource."""
