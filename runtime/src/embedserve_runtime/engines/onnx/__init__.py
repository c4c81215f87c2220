"""The engine on ONNX Runtime, which writes an ONNX graph from the description of an encoder."""
