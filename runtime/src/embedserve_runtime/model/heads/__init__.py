"""What a model has on top of its encoder instead of pooling: a classifier, or a masked-LM head for sparse vectors."""
