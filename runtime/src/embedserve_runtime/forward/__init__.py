"""Holds the inputs of a forward pass with its results.

No engine library is known here, nor a model.

arrays    types of arrays
batch     sequences of token ids, packed into one batch
grouping  which sequences of a batch are computed together
outputs   the kinds of outputs, and their values
engine    what an engine is and how it computes
cosines   how near vectors are to each other
"""
