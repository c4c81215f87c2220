"""Runs a server process from its start to its end.

launch      opens the ports, starts the loading, runs the server
life_cycle  the server, from its open ports to its last answer
loader      the thread that prepares the model
startup     prepares a model for serving
budget      measures the token budget while the server is idle
idle_memory gives back memory while the server is idle
fitting     fits the server to the memory of its container
"""
