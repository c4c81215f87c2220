"""The life of a server process from its start to its end."""
