"""Holds the values that a forward pass takes and returns, without engine libraries and without models.

arrays    types of arrays
batch     sequences of token ids, packed into one batch
grouping  which sequences of a batch are computed together
outputs   the kinds of outputs, and their values
engine    what an engine is and how it computes
cosines   how near vectors are to each other
"""
