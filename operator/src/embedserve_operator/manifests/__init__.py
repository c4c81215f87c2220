"""Builds one manifest for each child object of a resource."""
