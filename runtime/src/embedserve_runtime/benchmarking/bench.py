"""Runs a benchmark: loads the model, measures it and the machine, and suggests settings."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import uvloop

from embedserve_runtime.benchmarking.load import BatchCounter, LoadResult, run_load
from embedserve_runtime.benchmarking.matrix_products import count_flops, measure_peak_flops
from embedserve_runtime.benchmarking.texts import build_mix, read_texts
from embedserve_runtime.config import BatchingSettings, RuntimeConfig
from embedserve_runtime.cpu.quota import count_usable_cpus
from embedserve_runtime.cpu.split import choose_front_end_count
from embedserve_runtime.errors import WrongModelKind
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.frontends.overhead import measure_overhead
from embedserve_runtime.loading.runners import choose_variant, load_runner
from embedserve_runtime.progress import track_time, track_work
from embedserve_runtime.runners.base import Runner, repeat_by_concurrency
from embedserve_runtime.scheduling.calibration import (
    Calibration,
    SampleTexts,
    calibrate,
    limit_warm_up,
    warm_up,
)
from embedserve_runtime.scheduling.dispatcher import Dispatcher
from embedserve_runtime.scheduling.policy import Limits
from embedserve_runtime.service import InferenceService
from embedserve_runtime.service.loaded_model import LoadedModel
from embedserve_runtime.tokenizing import TextTokenizer, TruncationRules

CALIBRATION_SECONDS = 5.0
WARM_UP_SECONDS = 1.0
TOKENIZER_REPEATS = 3


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """Options of a benchmark. texts: a file with one text a line; None for the built-in mix."""

    texts: Path | None
    clients: int
    batch: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Settings for this model on this machine."""

    max_batch_tokens: int
    http_workers: int
    threads: int
    precision: str


@dataclass(frozen=True, slots=True)
class _ClientLoad:
    """The load of the clients, each of which sends a request when it has the answer to the last. batch: texts of a
    request."""

    texts: Sequence[str]
    clients: int
    batch: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Measurements:
    """The measurements of one run. tokenizing_rate: tokens per second of CPU time."""

    texts: int
    calibration: Calibration
    load_result: LoadResult
    batches: BatchCounter
    tokenizing_rate: float
    http_workers: int


@dataclass(frozen=True, slots=True)
class BenchReport:
    """The result of a benchmark. Rates are per second.

    product_gflops, product_share: None where the engine is not ONNX Runtime in float32. padding_share: the share of
    padding among all computed positions. tokenizing_share: the share of tokenizing in the time that tokenizing and the
    engine take for a text. variants: tokens/s of each published precision of the converted model, as measured during
    its conversion; empty where there is none.
    """

    model: str
    engine: str
    texts: int
    mean_tokens: float
    clients: int
    batch: int
    requests: int
    tokens_per_second: float
    texts_per_second: float
    p50_ms: float
    p99_ms: float
    padding_share: float
    tokenizing_share: float
    product_gflops: float | None
    product_share: float | None
    budgets: dict[int, float]
    variants: dict[str, float]
    suggestion: Suggestion


def run_benchmark(config: RuntimeConfig, options: BenchOptions) -> BenchReport:
    """Run the benchmark. Raises EmbedserveError when the model cannot be run."""
    texts = build_mix() if options.texts is None else read_texts(options.texts)
    runner = load_runner(config)
    card = runner.card
    if not card.main_output & (OutputKind.DENSE | OutputKind.SPARSE):
        raise WrongModelKind(f"{card.source} makes no vectors of single texts; bench a model that embeds")
    tokenizer = TextTokenizer.from_card(card)
    with track_work("measuring token budgets"):
        calibration = _calibrate(runner, tokenizer)
    tokenizing_rate = _measure_tokenizing(tokenizer, texts)
    setting = config.batching.max_batch_tokens
    budget = calibration.budget if setting == "auto" else setting
    batching = config.batching
    limits = Limits(budget, batching.max_queue_tokens, batching.max_queue_inputs)
    load = _ClientLoad(texts, options.clients, options.batch, options.seconds)
    load_result, batches = uvloop.run(_measure_load(load, runner, tokenizer, limits, batching))
    http_workers = choose_front_end_count(
        count_usable_cpus(),
        around=measure_overhead(card, tokenizer, texts),
        rate=calibration.tokens_per_second,
        threads=runner.engine.threads,
    )
    measurements = _Measurements(len(texts), calibration, load_result, batches, tokenizing_rate, http_workers)
    return _build_report(config, runner, options, measurements)


async def _measure_load(
    client_load: _ClientLoad,
    runner: Runner,
    tokenizer: TextTokenizer,
    limits: Limits,
    batching: BatchingSettings,
) -> tuple[LoadResult, BatchCounter]:
    engines, batches = repeat_by_concurrency([runner]), BatchCounter()
    dispatcher = Dispatcher(engines, limits, clock=time.perf_counter, observer=batches)
    service = InferenceService(
        LoadedModel(runner.card, limits, [runner.engine]), tokenizer, dispatcher, batching, time.perf_counter
    )
    try:
        load = partial(
            run_load, service, client_load.texts, clients=client_load.clients, batch=client_load.batch
        )
        await load(seconds=min(WARM_UP_SECONDS, client_load.seconds))
        batches.clear()
        with track_time("measuring under load", client_load.seconds):
            return await load(seconds=client_load.seconds), batches
    finally:
        service.close()
        dispatcher.close("the run is over")
        await asyncio.to_thread(dispatcher.join, client_load.seconds)


def _calibrate(runner: Runner, tokenizer: TextTokenizer) -> Calibration:
    run = partial(runner.run, outputs=runner.card.main_output)
    texts = SampleTexts(runner.card.max_length, tokenizer.vocabulary_size)
    warm_up(run, texts, limit_warm_up(texts.max_length, runner.engine.device))
    return calibrate(
        run,
        texts,
        concurrency=runner.engine.concurrency,
        seconds=CALIBRATION_SECONDS,
        clock=time.perf_counter,
    )


def _measure_tokenizing(tokenizer: TextTokenizer, texts: Sequence[str]) -> float:
    """Measure the tokens per second of CPU time, the best of a few runs."""
    best = 0.0
    for _ in range(TOKENIZER_REPEATS):
        started = time.process_time()
        encoded = tokenizer.encode(texts, "", TruncationRules(truncate=True))
        best = max(best, sum(map(len, encoded)) / max(time.process_time() - started, 1e-9))
    return best


def _build_report(
    config: RuntimeConfig, runner: Runner, options: BenchOptions, measurements: _Measurements
) -> BenchReport:
    load_result, batches = measurements.load_result, measurements.batches
    calibration, tokenizing_rate = measurements.calibration, measurements.tokenizing_rate
    threads = config.engine.threads or count_usable_cpus()
    card, engine = runner.card, runner.engine
    tokens = sum(load_result.lengths)
    is_comparable = engine.kind == "onnx" and engine.precision == "float32" and card.encoder.layers
    peak = measure_peak_flops(card.encoder, threads) if is_comparable else None
    work = count_flops(card.encoder, np.array(load_result.lengths)) / load_result.duration if peak else None
    # Both on one core: the time of a token before the engine, as a share of all of its time.
    engine_seconds = threads * batches.seconds / engine.concurrency / max(batches.tokens, 1)
    tokenizing_share = (1 / tokenizing_rate) / (1 / tokenizing_rate + engine_seconds)
    percentiles = (
        statistics.quantiles(load_result.seconds, n=100, method="inclusive")
        if len(load_result.seconds) > 1
        else None
    )
    return BenchReport(
        model=card.source,
        engine=engine.kind,
        texts=measurements.texts,
        mean_tokens=tokens / len(load_result.lengths),
        clients=options.clients,
        batch=options.batch,
        requests=len(load_result.seconds),
        tokens_per_second=tokens / load_result.duration,
        texts_per_second=len(load_result.lengths) / load_result.duration,
        p50_ms=1e3 * (percentiles[49] if percentiles else load_result.seconds[0]),
        p99_ms=1e3 * (percentiles[98] if percentiles else load_result.seconds[0]),
        padding_share=batches.padding / max(batches.tokens + batches.padding, 1),
        tokenizing_share=tokenizing_share,
        product_gflops=peak / 1e9 if peak else None,
        product_share=work / peak if work and peak else None,
        budgets={
            measurement.budget: measurement.tokens_per_second for measurement in calibration.measurements
        },
        variants=_list_variants(config, runner),
        suggestion=Suggestion(
            max_batch_tokens=calibration.budget,
            http_workers=measurements.http_workers,
            threads=threads,
            precision=engine.precision,
        ),
    )


def _list_variants(config: RuntimeConfig, runner: Runner) -> dict[str, float]:
    choice = choose_variant(runner.card, config) if runner.engine.kind == "onnx" else None
    variants = () if choice is None else choice[0].report.variants
    return {variant.precision: variant.tokens_per_second for variant in variants if variant.published}
