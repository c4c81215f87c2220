"""Converts a model to a stored ONNX artifact.

The artifact has the model in several precisions, each compared with float32.

    converting     the whole conversion; called by `embedserve convert`
    exporting      models of unsupported families, exported by torch and compared with it
    calibration    the observed ranges of the inputs of each product
    quantizing     8-bit numbers and how far they are off: pure functions on arrays
    rewriting      a float32 graph to one of another precision
    standard       a variant as an ONNX file with the usual inputs and outputs
    benchmark      a variant run over the corpus: its vectors, its speed

The texts, and how vectors are compared, are in `parity`.

What is stored, and how `serve` finds it, is in `engines.onnx.artifacts`.
"""
