"""Fits a server to the memory that its container may take, before its model is loaded."""

from __future__ import annotations

import logging
from dataclasses import asdict, replace

from embedserve_runtime.config import RuntimeConfig
from embedserve_runtime.cpu.quota import count_usable_cpus
from embedserve_runtime.loading.model_sizes import find_model_sizes
from embedserve_runtime.loading.runners import OpenedModel
from embedserve_runtime.memory.fitting import MemoryFit, fit_load
from embedserve_runtime.memory.limit import read_memory_limit
from embedserve_runtime.memory.load import describe_bounds, describe_load
from embedserve_runtime.model.card import ModelCard

log = logging.getLogger(__name__)


def fit_to_container(config: RuntimeConfig, opened: OpenedModel) -> tuple[MemoryFit, OpenedModel]:
    """Return what the server may serve at the same time, and the model with the longest text that there is memory for.

    A model that torch runs is not fitted: its activations are on a device, or were not measured. Raises MemoryTooSmall.
    """
    card = opened.card
    sizes, engine, _ = find_model_sizes(card, opened.tensors, config)
    load = describe_load(config, card.max_length, engine, count_usable_cpus())
    limit = None if engine == "torch" else read_memory_limit()
    fit = fit_load(sizes, load, describe_bounds(config, load), limit)
    facts = {"limit": limit, "planned": fit.planned, **asdict(fit.load)}
    log.info("memory planned", extra=facts)
    if fit.lowered:
        log.warning(
            "the container's memory limit has no room for all that the settings ask for: %s",
            "; ".join(fit.lowered),
            extra=facts,
        )
    if fit.load.max_length == card.max_length:
        return fit, opened
    return fit, replace(opened, card=_shorten(card, fit.load.max_length))


def _shorten(card: ModelCard, max_length: int) -> ModelCard:
    """Return the card with inputs of at most `max_length` tokens."""
    query = card.query
    if query is not None:
        query = replace(query, card=_shorten(query.card, min(max_length, query.card.max_length)))
    return replace(card, max_length=max_length, query=query)
