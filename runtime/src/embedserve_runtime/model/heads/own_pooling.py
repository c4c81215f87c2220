"""Reads how a model of NVIDIA's bidirectional Llama pools, from the key `pooling` of its config.json.

Source: the code beside the checkpoints of llama-nemotron-embed and llama-nemotron-rerank, of which NVIDIA's NeMo has a
copy (`llama_bidirectional`). There a name that it does not know means the first token; here it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from embedserve_runtime.errors import UnsupportedArchitecture
from embedserve_runtime.model.heads.config import HeadSource
from embedserve_runtime.model.modules import ModelLayout
from embedserve_runtime.model.pipeline import Pooling

FAMILY = "llama_bidirec"
POOLINGS: Mapping[str, Pooling] = MappingProxyType(
    {"avg": Pooling.MEAN, "cls": Pooling.CLS, "last": Pooling.LAST}
)


def find_own_pooling(source: HeadSource) -> Pooling | None:
    """Return the pooling that config.json names; None for other families, and where it names none. Raises
    UnsupportedArchitecture."""
    name = source.config.pooling
    if source.encoder.family != FAMILY or name is None:
        return None
    if name not in POOLINGS:
        raise UnsupportedArchitecture(
            f"{source.path}: pooling = {name!r} is not supported, supported are {', '.join(POOLINGS)}; set "
            "model.pooling"
        )
    return POOLINGS[name]


def add_own_pooling(layout: ModelLayout, source: HeadSource) -> ModelLayout:
    """Return the layout of an encoder with the pooling that config.json names, where no modules.json says how to pool.
    Raises UnsupportedArchitecture."""
    modules = layout.modules
    if modules.has_modules_file or modules.pooling is not None:
        return layout
    own = find_own_pooling(source)
    return layout if own is None else replace(layout, modules=replace(modules, pooling=(own,)))
