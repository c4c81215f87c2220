"""Hidden states to vectors or scores, each pooling once."""
