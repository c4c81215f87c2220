"""Settings that override what a model folder says about prompts, vectors and lengths."""

from __future__ import annotations

from typing import NamedTuple

from embedserve_runtime.config import ModelSettings
from embedserve_runtime.errors import ConfigError, ModelInvalid
from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.modules import ModelLayout, Modules
from embedserve_runtime.model.pipeline import Pipeline, Pooling


def resolve_prompts(layout: ModelLayout, settings: ModelSettings) -> tuple[dict[str, str], str | None]:
    """Return the prompts by name, and the name of the default one. Raises ConfigError or ModelInvalid where there is
    no such prompt."""
    prompts = {**layout.prompts, **settings.prompts}
    default_prompt = settings.default_prompt or layout.default_prompt
    if default_prompt is not None and default_prompt not in prompts:
        names = ", ".join(sorted(prompts)) or "none"
        if settings.default_prompt is None:
            raise ModelInvalid(
                f"config_sentence_transformers.json: default_prompt_name {default_prompt!r} is not one of its prompts: "
                f"{names}"
            )
        raise ConfigError(
            f"model.default_prompt: {default_prompt!r} is not a prompt of the model; known: {names}"
        )
    return prompts, default_prompt


def resolve_pipeline(
    encoder: Encoder, layout: ModelLayout, settings: ModelSettings, *, first_token: bool = False
) -> Pipeline:
    """Return the pipeline of dense vectors. first_token: see `heads.reading.pools_first_token`.

    Raises ModelInvalid or ConfigError.
    """
    modules = layout.modules
    takes_first = first_token and not modules.has_modules_file
    if modules.pooling is None and settings.pooling == "auto":
        _check_lacking_pooling(modules)
    usual = (Pooling.CLS,) if takes_first else (Pooling.MEAN,)
    normalize = modules.normalize or takes_first
    poolings = modules.pooling or usual if settings.pooling == "auto" else (Pooling(settings.pooling),)
    size = encoder.width * len(poolings)
    for layer in modules.dense:
        if layer.in_features != size:
            raise ModelInvalid(
                f"{layer.folder}: takes {layer.in_features} features, the step before gives {size}"
            )
        size = layer.out_features
    if settings.dimensions is not None and settings.dimensions > size:
        raise ConfigError(f"model.dimensions: {settings.dimensions} is more than the model's {size}")
    return Pipeline(
        pooling=poolings,
        dense=modules.dense,
        normalize=normalize,
        dimensions=settings.dimensions or size,
        full_dimensions=size,
        include_prompt=modules.include_prompt,
    )


def _check_lacking_pooling(modules: Modules) -> None:
    """Raise ConfigError where the modules say how something else is pooled."""
    if modules.splade is not None:
        raise ConfigError(
            "model.pooling: dense vectors are asked for, and the model's modules say only how sparse ones are pooled; "
            "set it"
        )


def resolve_rows_pipeline(width: int, settings: ModelSettings, layout: ModelLayout) -> Pipeline:
    """Return the pipeline of rows that a head makes instead of pooling."""
    for name, value, absent in (
        ("pooling", settings.pooling, "auto"),
        ("dimensions", settings.dimensions, None),
    ):
        if value != absent:
            raise ConfigError(f"model.{name}: is for dense vectors; with this task it cannot be set")
    if layout.modules.dense:
        raise ModelInvalid(
            f"{layout.modules.dense[0].folder}: a Dense module does not go with a head of the model"
        )
    return Pipeline(pooling=(), dense=(), normalize=False, dimensions=width, full_dimensions=width)


class MaxLength(NamedTuple):
    """The number of tokens that an input may have.

    effective: by the service's settings. from_files: by the model's files alone.
    """

    effective: int
    from_files: int


def resolve_max_length(encoder: Encoder, layout: ModelLayout, settings: ModelSettings) -> MaxLength:
    """Return the maximum length of inputs. Raises ConfigError where the settings ask for more than the encoder has."""
    max_positions = encoder.max_positions
    if settings.max_length is not None and settings.max_length > max_positions:
        raise ConfigError(
            f"model.max_length: {settings.max_length} is more than the model's {max_positions} positions"
        )
    from_files = min(layout.max_length or max_positions, max_positions)
    return MaxLength(settings.max_length or from_files, from_files)
