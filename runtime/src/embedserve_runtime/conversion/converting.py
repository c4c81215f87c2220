"""Writes a model's artifact into the store: every variant, tried against float32, those that are good enough kept."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from embedserve_runtime.config import RuntimeConfig
from embedserve_runtime.conversion.calibration import observe
from embedserve_runtime.conversion.corpus import calibration_texts, parity_texts
from embedserve_runtime.conversion.parity import Observed, compare, shortfalls
from embedserve_runtime.conversion.quantizing import Blocks, Static, best_static
from embedserve_runtime.conversion.rewriting import (
    FloatGraph,
    Form,
    Product,
    eight_bit,
    half_weights,
    write_model,
)
from embedserve_runtime.conversion.trial import Trial, sequences_of
from embedserve_runtime.cpu_features import sums_exactly
from embedserve_runtime.cpu_quota import usable_cpus
from embedserve_runtime.engines.onnx.artifacts import (
    INPUTS_FILE,
    KIND,
    MODEL_FILE,
    PLAIN,
    REPORT_FILE,
    Artifact,
    Inputs,
    Report,
    Variant,
    find_artifact,
    inputs_of,
)
from embedserve_runtime.engines.onnx.engine import OnnxEngine
from embedserve_runtime.engines.onnx.graph import build
from embedserve_runtime.engines.onnx.spool import drained
from embedserve_runtime.errors import UnsupportedArchitecture
from embedserve_runtime.loading import runner_on
from embedserve_runtime.model.card import ModelCard, read_card
from embedserve_runtime.model.checkpoint import Checkpoint, Weights
from embedserve_runtime.model.shipped import ShippedGraph
from embedserve_runtime.model.sources import open_model
from embedserve_runtime.model.store import is_sound, publish_folder, remove_folder
from embedserve_runtime.runner import Runner

log = logging.getLogger(__name__)

# Recipes of 8 bit, the fastest first: a product whose static error is above the number is made block-wise.
RECIPES = ((6e-4, Blocks(128)), (2e-4, Blocks(128)), (0.0, Blocks(32)))
# Greatest weight of a static product, with and without sums that cannot overflow.
GREATEST, GREATEST_IN_NARROW_SUMS = 127, 63


def convert(config: RuntimeConfig) -> Mapping[str, Any]:
    """What was made, as the operator reads it. Raises ModelError, SourceUnavailable, ConfigError and VolumeError."""
    located = open_model(config.model)
    card = read_card(located.folder, located.revision, config.model)
    if config.onnx.convert == "Never":
        return _result(card, None)
    refuse_foreign(card)
    inputs = inputs_of(card, config.onnx)
    root = config.model.store.expanduser()
    artifact = find_artifact(root, inputs.name)
    if artifact is not None and config.onnx.convert == "IfNeeded" and is_sound(artifact.folder):
        log.info("the converted model is there", extra={"artifact": inputs.name})
        return _result(card, artifact)
    remove_folder(root, KIND, inputs.name)
    threads = config.engine.threads or usable_cpus()
    maker = Maker(card, inputs, threads)
    publish_folder(root, KIND, inputs.name, maker.fill, made_from=located.digest)
    return _result(card, find_artifact(root, inputs.name))


def refuse_foreign(card: ModelCard) -> None:
    """Raises UnsupportedArchitecture for what our graph is not written from."""
    if isinstance(card.body, ShippedGraph):
        raise UnsupportedArchitecture(
            f"{card.source} runs by an ONNX file of its own, which is not converted; set onnx.convert to Never, or "
            "unset model.onnx_file where there are safetensors weights of a supported family"
        )
    if card.body is not None:
        raise UnsupportedArchitecture(
            f"{card.source} is a table of token vectors, which has no layers to convert; set onnx.convert to Never"
        )


def _result(card: ModelCard, artifact: Artifact | None) -> Mapping[str, Any]:
    report = Report(chosen=PLAIN, variants=()) if artifact is None else artifact.report
    return {
        "artifact": None if artifact is None else artifact.name,
        "vectorSpace": card.vector_space,
        **report.model_dump(by_alias=True, mode="json"),
    }


@dataclass(frozen=True, slots=True)
class Tried:
    """A variant that was run over the corpus."""

    observed: Observed
    tokens_per_second: float


class Maker:
    """Fills the folder of one artifact."""

    def __init__(self, card: ModelCard, inputs: Inputs, threads: int) -> None:
        self._card = card
        self._inputs = inputs
        self._threads = threads
        self._checkpoint = Checkpoint.open(card.encoder_folder)
        self._trial = Trial(card, sequences_of(card, parity_texts()))

    def fill(self, folder: Path) -> None:
        """Write all that is published, and the report. float32 always is."""
        (folder / INPUTS_FILE).write_text(self._inputs.model_dump_json(by_alias=True, indent=1) + "\n")
        self._write_float(folder / PLAIN)
        reference = self._try(folder, PLAIN)
        variants = [self._judged(reference, reference, PLAIN)]
        for precision in self._inputs.variants:
            if precision == "float16":
                variants.append(self._half(folder, reference))
            elif precision == "int8":
                variants.append(self._eight_bit(folder, reference))
        published = [variant for variant in variants if variant.published]
        chosen = max(published, key=lambda variant: variant.tokens_per_second).precision
        report = Report(chosen=chosen, variants=tuple(variants))
        (folder / REPORT_FILE).write_text(report.model_dump_json(by_alias=True, indent=1) + "\n")
        log.info("model converted", extra={"artifact": self._inputs.name, "chosen": chosen})

    def _write_float(self, folder: Path) -> None:
        model, arrays = build(self._card.encoder, Weights(self._card.encoder, self._checkpoint))
        write_model(folder, model, drained(arrays), self._metadata(PLAIN, "as the source"))

    def _half(self, folder: Path, reference: Tried) -> Variant:
        model, arrays = half_weights(FloatGraph(folder / PLAIN))
        write_model(folder / "float16", model, arrays, self._metadata("float16", "matrices in float16"))
        return self._published(folder, "float16", reference)

    def _eight_bit(self, folder: Path, reference: Tried) -> Variant:
        """By the first recipe that is good enough, else as the last one is judged."""
        graph = FloatGraph(folder / PLAIN)
        static = self._static_forms(graph, folder / PLAIN)
        greatest = GREATEST if sums_exactly(self._inputs.instruction_set) else GREATEST_IN_NARROW_SUMS
        for most_error, blocks in RECIPES:
            forms = chosen_forms(graph.products(), static, most_error, blocks)
            model, arrays = eight_bit(graph, forms, greatest)
            write_model(folder / "int8", model, arrays, self._metadata("int8", recipe_of(forms)))
            variant = self._published(folder, "int8", reference)
            if variant.published:
                break
        return variant

    def _static_forms(self, graph: FloatGraph, folder: Path) -> Mapping[str, tuple[Static, float]]:
        """The best of each product, by the name of its weight, and its error."""
        texts = sequences_of(self._card, calibration_texts())
        seen = observe(folder, self._card.encoder, graph.products(), texts, self._threads)
        return {name: best_static(graph.read(name), inputs, GREATEST) for name, inputs in seen.items()}

    def _published(self, folder: Path, precision: str, reference: Tried) -> Variant:
        """Tried, judged, and removed again if it is not good enough."""
        variant = self._judged(reference, self._try(folder, precision), precision)
        if not variant.published:
            log.warning("variant not published", extra={"precision": precision, "reason": variant.reason})
            shutil.rmtree(folder / precision)
        return variant

    def _try(self, folder: Path, precision: str) -> Tried:
        runner = self._runner(folder / precision / MODEL_FILE, precision)
        return Tried(self._trial.observe(runner), self._trial.tokens_per_second(runner))

    def _runner(self, file: Path, precision: str) -> Runner:
        engine = OnnxEngine.load(self._card.encoder, file, precision, self._threads)
        return runner_on(engine, self._card, self._checkpoint)

    def _judged(self, reference: Tried, tried: Tried, precision: str) -> Variant:
        parity = compare(reference.observed, tried.observed)
        reason = "" if precision == PLAIN else shortfalls(parity, self._inputs.floor)
        return Variant(
            precision=precision,
            published=not reason,
            reason=reason,
            mean_cosine=round(parity.mean_cosine, 6),
            min_cosine=round(parity.min_cosine, 6),
            max_difference=round(parity.max_difference, 6),
            rank_agreement=round(parity.rank_agreement, 6),
            tokens_per_second=round(tried.tokens_per_second, 1),
        )

    def _metadata(self, precision: str, recipe: str) -> Mapping[str, str]:
        return {
            "embedserve.precision": precision,
            "embedserve.recipe": recipe,
            "embedserve.inputs": json.dumps(self._inputs.model_dump(by_alias=True), sort_keys=True),
        }


def chosen_forms(
    products: Sequence[Product],
    static: Mapping[str, tuple[Static, float]],
    most_error: float,
    blocks: Blocks,
) -> Mapping[str, Form]:
    """Static where that is close enough, block-wise elsewhere."""
    forms: dict[str, Form] = {}
    for product in products:
        form, error = static.get(product.weight, (blocks, inf))
        forms[product.weight] = form if error <= most_error else blocks
    return forms


def recipe_of(forms: Mapping[str, Form]) -> str:
    """In words."""
    blocks = [form for form in forms.values() if isinstance(form, Blocks)]
    sizes = "".join(f" of {size}" for size in sorted({form.size for form in blocks}))
    return f"8-bit products: {len(forms) - len(blocks)} static, {len(blocks)} block-wise{sizes}"
