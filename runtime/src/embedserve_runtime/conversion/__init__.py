"""From a model to a stored ONNX artifact: written once, in several precisions, tried against float32, published or not.

    converting     the whole way; called by `embedserve convert`
    foreign        the way of a model of no family of ours: exported by torch and held against it
    calibration    what goes into each product of a model, observed
    quantizing     8-bit numbers and how far they are off: pure functions on arrays
    rewriting      a float32 graph to one of another precision
    standard       a variant as an ONNX file with the usual inputs and outputs
    trial          a variant run over the corpus: its vectors, its speed

The texts, and how vectors are compared, are in `parity`.

What is stored, and how `serve` finds it, is in `engines.onnx.artifacts`.
"""
