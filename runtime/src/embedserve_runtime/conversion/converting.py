"""Writes a model's artifact into the store: every variant is compared with float32, and the good ones are published."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import onnx

from embedserve_runtime.config import RuntimeConfig
from embedserve_runtime.conversion.benchmark import (
    Benchmark,
    BenchmarkResult,
    ParityLimits,
    describe_variant,
    tokenize_corpus,
    tokenize_longest,
)
from embedserve_runtime.conversion.calibration import build_probing_engine, observe_ranges
from embedserve_runtime.conversion.exporting import export
from embedserve_runtime.conversion.quantizing import BlockQuantization, StaticQuantization, choose_static
from embedserve_runtime.conversion.rewriting import (
    FloatGraph,
    Form,
    Product,
    convert_to_eight_bit,
    convert_to_plain_products,
    convert_weights_to_half,
    write_model,
)
from embedserve_runtime.conversion.standard import build_standard_model, check_outputs
from embedserve_runtime.cpu.features import compute_max_static_weight
from embedserve_runtime.cpu.quota import count_usable_cpus
from embedserve_runtime.engines.onnx.artifacts import (
    INPUTS_FILE,
    KIND,
    MODEL_FILE,
    PLAIN,
    REPORT_FILE,
    STANDARD_FILE,
    Artifact,
    ConversionReport,
    Inputs,
    Variant,
    describe_inputs,
    find_artifact,
)
from embedserve_runtime.engines.onnx.engine import OnnxEngine, describe_engine
from embedserve_runtime.engines.onnx.graph import build
from embedserve_runtime.engines.onnx.spool import drain_arrays
from embedserve_runtime.errors import UnsupportedArchitecture
from embedserve_runtime.loading.assembly import build_runners, load_heads
from embedserve_runtime.model.adapted_tensors import open_encoder_tensors
from embedserve_runtime.model.bundled_onnx import BundledOnnx
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.checkpoint import Weights
from embedserve_runtime.model.exports import needs_export
from embedserve_runtime.model.folder import read_model
from embedserve_runtime.model.reading import read_card
from embedserve_runtime.model.tensors import ModelTensors
from embedserve_runtime.parity.corpus import read_calibration_texts, read_parity_texts
from embedserve_runtime.parity.measures import compare, describe_shortfalls
from embedserve_runtime.progress import Unit, track_work
from embedserve_runtime.sources import open_model
from embedserve_runtime.store import is_intact, publish_folder, remove_folder

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QuantizationConfig:
    """Configuration of the quantization of a model's linear layers.

    max_error: layers whose error with one static range is above it are quantized in `blocks`. float_share: the share of
    all layers that stays in float32, those with the greatest errors.
    """

    max_error: float
    blocks: BlockQuantization
    float_share: float = 0.0


# The fastest first.
QUANTIZATION_CONFIGS = (
    QuantizationConfig(6e-4, BlockQuantization(128)),
    QuantizationConfig(2e-4, BlockQuantization(128)),
    QuantizationConfig(0.0, BlockQuantization(32)),
    QuantizationConfig(0.0, BlockQuantization(32), float_share=0.25),
)
# Tokens of calibration, of those that a benchmark may run.
CALIBRATION_SHARE = 0.5


def convert(config: RuntimeConfig) -> Mapping[str, Any]:
    """Convert a model and report the result, as the operator reads it. Raises ModelError, SourceUnavailable,
    ConfigError and VolumeError."""
    located = open_model(config.model)
    root = config.model.store.expanduser()
    if config.onnx.convert == "Never":
        return _describe_result(read_card(located.folder, located.revision, config.model), None)
    read = read_model(located.folder)
    is_exported = needs_export(read.files, read.routes, config.model.onnx_file)
    exported = export(config, located, read) if is_exported else None
    card = read_card(located.folder, located.revision, config.model)
    if exported is not None:
        return _describe_result(card, find_artifact(root, exported))
    check_convertible(card)
    inputs = describe_inputs(card, config.onnx)
    artifact = find_artifact(root, inputs.name)
    if artifact is not None and config.onnx.convert == "IfNeeded" and is_intact(artifact.folder):
        log.info("the converted model is there", extra={"artifact": inputs.name})
        return _describe_result(card, artifact)
    remove_folder(root, KIND, inputs.name)
    threads = config.engine.threads or count_usable_cpus()
    writer = ArtifactWriter(card, ModelTensors(located.folder), inputs, threads)
    publish_folder(root, KIND, inputs.name, writer.write, made_from=located.digest)
    return _describe_result(card, find_artifact(root, inputs.name))


def check_convertible(card: ModelCard) -> None:
    """Raise UnsupportedArchitecture for a model that our graph is not written from."""
    if isinstance(card.backbone, BundledOnnx):
        raise UnsupportedArchitecture(
            f"{card.source} runs by an ONNX file of its own, which is not converted; set onnx.convert to Never, or "
            "unset model.onnx_file where there are safetensors weights of a supported family"
        )
    if sum(route.backbone is None for route in card.list_routes()) > 1:
        raise UnsupportedArchitecture(
            f"{card.source} has several encoders, for queries and documents or for several tasks, and an artifact "
            "holds one; set onnx.convert to Never"
        )
    if card.backbone is not None:
        raise UnsupportedArchitecture(
            f"{card.source} is a table of token vectors, which has no layers to convert; set onnx.convert to Never"
        )


def _describe_result(card: ModelCard, artifact: Artifact | None) -> Mapping[str, Any]:
    report = ConversionReport(chosen=PLAIN, variants=()) if artifact is None else artifact.report
    return {
        "artifact": None if artifact is None else artifact.name,
        "vectorSpace": card.vector_space,
        "formerVectorSpace": card.former_vector_space,
        "dimensions": card.pipeline.dimensions,
        "outputs": card.output_names,
        "guessesPooling": card.guesses_pooling,
        **report.model_dump(by_alias=True, mode="json"),
    }


class ArtifactWriter:
    """Writes the folder of one artifact."""

    def __init__(self, card: ModelCard, tensors: ModelTensors, inputs: Inputs, threads: int) -> None:
        self._card = card
        self._tensors = tensors
        self._inputs = inputs
        self._threads = threads
        self._checkpoint = open_encoder_tensors(card, tensors)
        texts = read_parity_texts()
        self._benchmark = Benchmark(card, tokenize_corpus(card, texts), tokenize_longest(card, texts))
        self._seconds: dict[str, float] = {}
        self._heads = load_heads(card, tensors, self._checkpoint)
        self._standard_outputs = inputs.outputs[1:]
        check_outputs(card, self._standard_outputs)

    def write(self, folder: Path) -> None:
        """Write the variants that are published, and the report. float32 always is published."""
        (folder / INPUTS_FILE).write_text(self._inputs.model_dump_json(by_alias=True, indent=1) + "\n")
        self._write_float(folder / PLAIN)
        reference = self._run_benchmark(folder, PLAIN)
        limits = ParityLimits(reference.outputs, self._inputs.floor)
        variants = [self._judge(limits, reference, PLAIN)]
        if self._standard_outputs:
            self._write_standard(folder / PLAIN)
        for precision in self._inputs.variants:
            if precision == "float16":
                variants.append(self._write_half(folder, limits))
            elif precision == "bfloat16":
                variants.append(self._write_bfloat16(folder, limits))
            elif precision == "int8":
                variants.append(self._write_eight_bit(folder, limits))
        published = [variant for variant in variants if variant.published]
        chosen = max(published, key=lambda variant: variant.tokens_per_second).precision
        report = ConversionReport(chosen=chosen, variants=tuple(variants))
        (folder / REPORT_FILE).write_text(report.model_dump_json(by_alias=True, indent=1) + "\n")
        seconds = {phase: round(value, 2) for phase, value in self._seconds.items()}
        log.info(
            "model converted",
            extra={"artifact": self._inputs.name, "chosen": chosen, "seconds": seconds},
        )

    @contextmanager
    def _time_phase(
        self, phase: str, total: float | None = None, unit: Unit = "seconds"
    ) -> Iterator[Callable[[float], None]]:
        """Time and display a phase. Yields the function that is told how much is done, in units."""
        began = time.perf_counter()
        with track_work(phase, total, unit) as advance:
            yield advance
        self._seconds[phase] = self._seconds.get(phase, 0.0) + time.perf_counter() - began

    def _write_float(self, folder: Path) -> None:
        weights = Weights(self._card.encoder, self._checkpoint)
        with self._time_phase("writing", weights.size, "parameters") as advance:
            model, arrays = build(
                self._card.encoder,
                weights.with_observer(advance),
                has_attention_mask=self._card.has_attention_mask,
            )
            write_model(folder, model, drain_arrays(arrays), self._build_metadata(PLAIN, "as the source"))

    def _write_standard(self, folder: Path) -> None:
        packed = onnx.load(str(folder / MODEL_FILE), load_external_data=False)
        model = build_standard_model(packed, self._card, self._heads, self._standard_outputs)
        (folder / STANDARD_FILE).write_bytes(model.SerializeToString(deterministic=True))

    def _write_half(self, folder: Path, limits: ParityLimits) -> Variant:
        with self._time_phase("writing"):
            model, arrays = convert_weights_to_half(FloatGraph(folder / PLAIN))
            write_model(
                folder / "float16", model, arrays, self._build_metadata("float16", "matrices in float16")
            )
        return self._publish_if_good(folder, "float16", limits)

    def _write_bfloat16(self, folder: Path, limits: ParityLimits) -> Variant:
        with self._time_phase("writing"):
            model, arrays = convert_to_plain_products(FloatGraph(folder / PLAIN))
            recipe = "products in bfloat16 as the session makes them"
            write_model(folder / "bfloat16", model, arrays, self._build_metadata("bfloat16", recipe))
        return self._publish_if_good(folder, "bfloat16", limits)

    def _write_eight_bit(self, folder: Path, limits: ParityLimits) -> Variant:
        """Write the first variant in 8 bit that is good enough; else the last one is judged."""
        graph = FloatGraph(folder / PLAIN)
        static = self._choose_static_forms(graph, folder / PLAIN)
        recipes: list[Mapping[str, Form]] = []
        for recipe in QUANTIZATION_CONFIGS:
            forms = choose_forms(graph.list_products(), static, recipe)
            if forms not in recipes:
                recipes.append(forms)
        for forms in recipes:
            with self._time_phase("writing"):
                model, arrays = convert_to_eight_bit(graph, forms, self._max_weight)
                write_model(
                    folder / "int8",
                    model,
                    arrays,
                    self._build_metadata("int8", describe_forms(forms, len(graph.list_products()))),
                )
            variant = self._publish_if_good(folder, "int8", limits)
            if variant.published:
                break
        return variant

    @property
    def _max_weight(self) -> int:
        """The largest 8-bit weight: scales are chosen for the weights that are written."""
        return compute_max_static_weight(self._inputs.instruction_set)

    def _choose_static_forms(
        self, graph: FloatGraph, folder: Path
    ) -> Mapping[str, tuple[StaticQuantization, float]]:
        """Choose the static form of each product, by the name of its weight, with its error."""
        texts = tokenize_corpus(self._card, read_calibration_texts(), CALIBRATION_SHARE)
        with self._time_phase("calibrating", sum(map(len, texts)), "tokens") as advance:
            engine = build_probing_engine(
                folder,
                self._card.encoder,
                graph.list_products(),
                self._threads,
            )
            observed = observe_ranges(engine, graph.list_products(), texts, advance)
            del engine

        # One after another: numpy's products have threads of their own, and two pools of them wait for each other.
        forms = {}
        with self._time_phase("choosing scales", len(observed), "products") as advance:
            for name, ranges in observed.items():
                forms[name] = choose_static(graph.read(name), ranges, self._max_weight)
                advance(1)
        return forms

    def _publish_if_good(self, folder: Path, precision: str, limits: ParityLimits) -> Variant:
        """Run a variant and judge it; remove it if it is not good enough."""
        variant = self._judge(limits, self._run_benchmark(folder, precision, limits), precision)
        if not variant.published:
            log.warning("variant not published", extra={"precision": precision, "reason": variant.reason})
            shutil.rmtree(folder / precision)
        elif self._standard_outputs:
            self._write_standard(folder / precision)
        return variant

    def _run_benchmark(
        self, folder: Path, precision: str, limits: ParityLimits | None = None
    ) -> BenchmarkResult:
        with self._time_phase(f"trying {precision}", self._benchmark.tokens, "tokens") as advance:
            engine = OnnxEngine.load(
                self._card.encoder,
                folder / precision / MODEL_FILE,
                describe_engine(precision, self._threads),
            )
            (runner,) = build_runners(self._card, self._tensors, lambda *_: [engine])
            return self._benchmark.run(runner, limits, on_tokens=advance)

    def _judge(self, limits: ParityLimits, result: BenchmarkResult, precision: str) -> Variant:
        texts = len(result.outputs.vectors)
        parity = compare(limits.reference.take_first(texts), result.outputs)
        reason = "" if precision == PLAIN else describe_shortfalls(parity, self._inputs.floor)
        return describe_variant(precision, parity, reason, result.tokens_per_second)

    def _build_metadata(self, precision: str, recipe: str) -> Mapping[str, str]:
        return {
            "embedserve.precision": precision,
            "embedserve.recipe": recipe,
            "embedserve.inputs": json.dumps(self._inputs.model_dump(by_alias=True), sort_keys=True),
        }


def choose_forms(
    products: Sequence[Product],
    static: Mapping[str, tuple[StaticQuantization, float]],
    recipe: QuantizationConfig,
) -> Mapping[str, Form]:
    """Choose the form of each product, by its weight: static where that is close enough, block-wise elsewhere; none
    where it stays in float32. A product that calibration has not seen counts as the worst."""
    errors = {product.weight: static.get(product.weight, (None, inf))[1] for product in products}
    worst = sorted(errors, key=lambda name: -errors[name])[: int(len(errors) * recipe.float_share)]
    forms: dict[str, Form] = {}
    for name, error in errors.items():
        if name not in worst:
            forms[name] = static[name][0] if error <= recipe.max_error else recipe.blocks
    return forms


def describe_forms(forms: Mapping[str, Form], products: int) -> str:
    """Describe the forms in a message. products: how many there are."""
    blocks = [form for form in forms.values() if isinstance(form, BlockQuantization)]
    sizes = "".join(f" of {size}" for size in sorted({form.size for form in blocks}))
    whole = products - len(forms)
    left = f", {whole} in float32" if whole else ""
    return f"8-bit products: {len(forms) - len(blocks)} static, {len(blocks)} block-wise{sizes}{left}"
