"""Publishes the status of a resource when it says something new."""
