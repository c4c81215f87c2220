"""Runs a server process from its start to its end.

process  the life of the process
startup  prepares a model for serving
"""
