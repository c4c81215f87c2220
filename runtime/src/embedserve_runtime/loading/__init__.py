"""The stages from settings to the runners of a model."""
