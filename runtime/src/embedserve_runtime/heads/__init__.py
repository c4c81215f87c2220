"""Turns hidden states into vectors or scores.

dense, sparse    one vector for each sequence
token_heads      lexical weights and token vectors
classification   logits and scores
layers, activations    the layers that heads are made of
token_pooling    fewer token vectors for each document
late_chunking    vectors for parts of a text
quantization     vectors in fewer bytes
similarity       scores of documents for a query
"""
