"""Decides which part of a model's pipeline the dense vectors of an ONNX file include, and which is still to be done.

An exporter writes the whole pipeline into the file, or only what stands before the Dense modules. The width of the
output tells which, where the steps have different widths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from embedserve_runtime.config import ModelSettings
from embedserve_runtime.errors import UnsupportedArchitecture
from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.bundled_onnx import BundledOnnx, GraphConfig
from embedserve_runtime.model.config_overrides import resolve_pipeline
from embedserve_runtime.model.modules import ModelLayout, Modules
from embedserve_runtime.model.pipeline import DenseLayer, Pipeline


def choose_dense_output(
    graph: BundledOnnx, config: GraphConfig, modules: Modules, settings: ModelSettings
) -> tuple[BundledOnnx, tuple[DenseLayer, ...]]:
    """Return the graph with the output that dense vectors are made of, and the layers after that output.

    graph: with dense vectors among its outputs. config: of the encoder. The hidden states are taken where the width of
    the vectors does not tell which layers they include. Raises UnsupportedArchitecture.
    """
    widths = _list_widths(config, modules)
    if graph.is_width_declared and not modules.has_modules_file:
        return graph, ()
    ends = [
        step
        for step, width in enumerate(widths)
        if not graph.is_width_declared or width in (graph.width, None)
    ]
    match ends:
        case [step]:
            return replace(graph, width=widths[step] or graph.width), modules.dense[step:]
        case [] if graph.width == settings.dimensions:
            return graph, ()  # cut in the file already, as a conversion with this setting writes it
        case []:
            raise UnsupportedArchitecture(
                f"{graph.file}: its output {graph.pooled} is {graph.width} wide, and the modules of the folder make "
                f"vectors of {_join(widths)}; choose another file by model.onnx_file"
            )
    if graph.hidden is not None:
        return replace(graph, pooled=None, width=None, is_width_declared=True), modules.dense
    width = f"{graph.width} wide" if graph.is_width_declared else "of no declared width"
    raise UnsupportedArchitecture(
        f"{graph.file}: its output {graph.pooled} is {width}, which does not tell whether the folder's Dense modules "
        f"(from {_join(widths)}) are in the file; choose a file that gives last_hidden_state or token_embeddings too"
    )


def resolve_graph_pipeline(
    encoder: Encoder,
    graph: BundledOnnx,
    layers: Sequence[DenseLayer],
    layout: ModelLayout,
    settings: ModelSettings,
) -> Pipeline:
    """Return the pipeline of a graph that pools. layers: after its dense vectors. Raises as `resolve_pipeline`."""
    modules = layout.modules
    sized = replace(encoder, hidden_size=graph.width or 0)
    # The first pooling stands for all: it is in the graph, and one vector comes out. Normalizing twice changes nothing.
    first = None if modules.pooling is None else modules.pooling[:1]
    rest = replace(modules, pooling=first, dense=tuple(layers))
    return resolve_pipeline(sized, replace(layout, modules=rest), settings)


def _list_widths(config: GraphConfig, modules: Modules) -> list[int | None]:
    """List the widths of a vector: as pooled, then after each Dense module. None where config.json does not say it."""
    if modules.dense:
        return [modules.dense[0].in_features, *(layer.out_features for layer in modules.dense)]
    return [config.size * len(modules.pooling or (None,)) if config.size else None]


def _join(widths: Sequence[int | None]) -> str:
    return ", then ".join(map(str, widths))
