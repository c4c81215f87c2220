"""Measures how near vectors are to those of float32.

    corpus      the texts, and which of them are enough for a model of some size
    measures    numbers of two sets of vectors, and the judgement: pure functions on arrays
    eight_bit   of an engine in 8 bit against itself in 16 bit, when a server on a GPU starts

Variants of a converted model are run on the same texts and by the same measures: `conversion.benchmark`.
"""
