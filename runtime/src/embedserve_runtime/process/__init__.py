"""Runs a server process from its start to its end.

life_cycle  the process, from its open ports to its exit
startup     prepares a model for serving
fitting     fits the server to the memory of its container
"""
