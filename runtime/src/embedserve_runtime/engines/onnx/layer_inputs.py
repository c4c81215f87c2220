"""Writes what layers read of the embeddings beside their inputs (`model.architecture.LayerInputs`), as nodes."""

from __future__ import annotations

import numpy as np

from embedserve_runtime.engines.onnx.parts import Parts
from embedserve_runtime.model.architecture import Encoder, LayerInputs


def write_layer_inputs(parts: Parts, embeddings: str, encoder: Encoder) -> list[str]:
    """Write the layer input of each layer, (tokens, width). embeddings: (tokens, hidden), of an encoder that has such
    inputs."""
    graph, inputs, count = parts.graph, encoder.layer_inputs, len(encoder.layers)
    assert inputs is not None
    projected = parts.write_product(embeddings, ["layer_inputs.projection"], bias=False)
    scaled = graph.add(
        "Mul", projected, graph.add_constant("layer_inputs.scale", np.array([inputs.scale], dtype=np.float32))
    )
    rows = graph.add("Reshape", scaled, graph.add_integers(-1, inputs.width))
    normed = parts.write_norm(rows, inputs.norm, "layer_inputs.norm")
    by_token = graph.add("Reshape", normed, graph.add_integers(-1, count * inputs.width))
    return graph.add_many("Split", by_token, outputs=count, axis=1, num_outputs=count)


def write_layer_input(parts: Parts, output: str, layer_input: str, inputs: LayerInputs, name: str) -> str:
    """Write the output of the layer `name` with what `layer_input` adds to it, (tokens, hidden)."""
    graph, own = parts.graph, f"{name}.layer_input"
    gate = parts.write_activation(parts.write_product(output, [f"{own}.gate"], bias=False), inputs.activation)
    mixed = parts.write_product(graph.add("Mul", gate, layer_input), [f"{own}.projection"], bias=False)
    total = graph.add("Add", output, parts.write_norm(mixed, inputs.norm, f"{own}.norm"))
    return graph.add("Mul", total, parts.add_parameter(f"{own}.factor"))
