"""Plans the memory of a server.

activations   what a batch takes, by the shape of the encoder
sizes         what a model takes, by its description
plan          what a server takes, part by part
limit         what its container may take
fitting       the settings with which it stays within that
"""
