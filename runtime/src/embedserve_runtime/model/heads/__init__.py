"""The heads that a model has on top of its encoder, described as data."""
