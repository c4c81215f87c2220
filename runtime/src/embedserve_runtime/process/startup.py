"""Prepares a model for serving: loads it, warms it up and measures it on this machine."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

from embedserve_runtime.config import RuntimeConfig
from embedserve_runtime.cpu.nodes import list_usable_nodes, read_nodes
from embedserve_runtime.cpu.quota import count_usable_cpus, list_allowed_cpus
from embedserve_runtime.cpu.split import CpuSplit, choose_front_end_count, split_cpus
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.outputs import ModelOutput
from embedserve_runtime.loading.runners import load_runners, open_served_model
from embedserve_runtime.memory.fitting import MemoryFit
from embedserve_runtime.parity.corpus import read_parity_texts
from embedserve_runtime.process.budget import BudgetMeasurement, log_budget
from embedserve_runtime.process.fitting import fit_to_container
from embedserve_runtime.progress import track_work
from embedserve_runtime.runners.base import Runner
from embedserve_runtime.scheduling.calibration import (
    Calibration,
    SampleTexts,
    limit_warm_up,
    measure_rate,
    warm_up,
)
from embedserve_runtime.tokenizing import TextTokenizer, TruncationRules

log = logging.getLogger(__name__)

# Where no request should wait for more than a first figure, since the budget is measured again while the model serves.
FIRST_CALIBRATION_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class ServableModel:
    """A model that is ready to serve.

    runners: one for each device. calibration: of one runner; None where the token budget is a setting. measurement:
    measures the budget while the model serves; None where nothing is left to measure. split: None where cores are not
    split, since the engine does not run on a CPU or its threads are set. http_workers: as set, or as measured. fit:
    what it may serve at the same time.
    """

    runners: Sequence[Runner]
    tokenizer: TextTokenizer
    max_batch_tokens: int
    calibration: Calibration | None
    measurement: BudgetMeasurement | None
    split: CpuSplit | None
    http_workers: int
    fit: MemoryFit


def prepare_model(config: RuntimeConfig, on_loaded: Callable[[], object]) -> ServableModel:
    """Load, warm up and measure a model until it can serve.

    on_loaded: called once when the model is in memory. Raises EmbedserveError.
    """
    started = time.perf_counter()
    fit, opened = fit_to_container(config, open_served_model(config))
    runners = load_runners(config, opened)
    tokenizer = TextTokenizer.from_card(runners[0].card)
    log.info(
        "model loaded",
        extra={
            "seconds": round(time.perf_counter() - started, 3),
            "engines": [asdict(runner.engine) for runner in runners],
        },
    )
    on_loaded()
    calibration, measurement = _warm_up_and_calibrate(config, runners, tokenizer, fit)
    allocation = _allocate_cores(config, runners, tokenizer, calibration)
    split = allocation.split
    if split is not None and split.engine != runners[0].engine.threads:
        engine = config.engine.model_copy(update={"threads": split.engine})
        # Released before the same model is loaded again.
        runners = []
        runners = load_runners(config.model_copy(update={"engine": engine}), opened)
        calibration, measurement = _warm_up_and_calibrate(config, runners, tokenizer, fit)
    budget = fit.load.batch_tokens
    if calibration is not None:
        budget = calibration.budget
        if measurement is None:
            log_budget(calibration)
    # Objects that are alive now stay alive: later collections need not visit them.
    gc.collect()
    gc.freeze()
    gc.enable()
    workers = allocation.http_workers
    if config.server.http_workers == "auto" and fit.max_http_workers is not None:
        workers = min(workers, fit.max_http_workers)
    return ServableModel(runners, tokenizer, budget, calibration, measurement, split, workers, fit)


def _warm_up_and_calibrate(
    config: RuntimeConfig, runners: Sequence[Runner], tokenizer: TextTokenizer, fit: MemoryFit
) -> tuple[Calibration | None, BudgetMeasurement | None]:
    """Warm up all runners and calibrate the first. Where the engine takes further batches beside those that run, that
    is done for a moment only, and the second value does it well while the model serves. Both are None where the budget
    is a setting."""
    with track_work("warming up"):
        for runner in runners:
            longest = limit_warm_up(runner.card.max_length, runner.engine.device)
            warm_up(_bind_main_run(runner), _make_sample_texts(runner, tokenizer), longest)
    if config.batching.max_batch_tokens != "auto":
        return None, None
    first = runners[0]
    texts = replace(_make_sample_texts(first, tokenizer), max_batch_tokens=fit.load.batch_tokens)
    concurrency = min(first.engine.concurrency, fit.max_concurrency or first.engine.concurrency)
    measurement = BudgetMeasurement(_bind_main_run(first), texts, concurrency)
    if first.engine.can_overcommit:
        return measurement.measure(FIRST_CALIBRATION_SECONDS), measurement
    return measurement.measure(), None


def _make_sample_texts(runner: Runner, tokenizer: TextTokenizer) -> SampleTexts:
    return SampleTexts(runner.card.max_length, tokenizer.vocabulary_size)


def _bind_main_run(runner: Runner) -> Callable[[PackedBatch], ModelOutput]:
    return partial(runner.run, outputs=runner.card.main_output)


@dataclass(frozen=True, slots=True)
class _CoreAllocation:
    """The division of the cores, with the number of HTTP workers."""

    split: CpuSplit | None
    http_workers: int


def _allocate_cores(
    config: RuntimeConfig,
    runners: Sequence[Runner],
    tokenizer: TextTokenizer,
    calibration: Calibration | None,
) -> _CoreAllocation:
    """Decide how many processes share the cores, and how: measured, as far as it is not set."""
    threads, server = runners[0].engine.threads, config.server
    splits_cores = threads is not None and config.engine.threads is None
    if not splits_cores and server.http_workers != "auto":
        return _CoreAllocation(None, server.http_workers)
    tokens_rate = _measure_engine_rate(runners[0], tokenizer, calibration)
    workers, cpus = server.first_workers, count_usable_cpus()
    if server.http_workers == "auto":
        # Imported here: it needs the libraries of the server, which are imported while a model is loaded.
        from embedserve_runtime.frontends.overhead import measure_overhead

        around = measure_overhead(
            runners[0].card, tokenizer, read_parity_texts(), logs_requests=config.server.access_log
        )
        workers = choose_front_end_count(
            cpus, around=around, rate=tokens_rate * len(runners), threads=threads
        )
        measured = {
            "around_us_a_token": round(around * 1e6, 3),
            "engine_tokens_per_second": round(tokens_rate),
        }
        log.info("front ends counted", extra={"http_workers": workers, "cpus": cpus, **measured})
    else:
        around = _measure_tokenizing(tokenizer)
    if threads is None or not splits_cores:
        return _CoreAllocation(None, workers)
    split = split_cpus(cpus, tokenizing=around, engine=threads / tokens_rate, processes=workers)
    _log_split(split)
    return _CoreAllocation(split, workers)


def _measure_engine_rate(runner: Runner, tokenizer: TextTokenizer, calibration: Calibration | None) -> float:
    """Return the tokens per second of one engine."""
    if calibration is not None:
        return calibration.tokens_per_second
    return measure_rate(
        _bind_main_run(runner),
        _make_sample_texts(runner, tokenizer),
        concurrency=runner.engine.concurrency,
        clock=time.perf_counter,
    )


def _log_split(split: CpuSplit) -> None:
    nodes = [node.number for node in list_usable_nodes(read_nodes(), list_allowed_cpus())]
    log.info("cores shared", extra={"split": asdict(split), "memory_nodes": nodes})
    if len(nodes) > 1 and split.engine > 1:
        log.warning(
            "the engine's threads may run on several NUMA nodes, and its weights lie on one; CPUs of one node for each "
            "replica avoid that (kubelet: cpuManagerPolicy static, topologyManagerPolicy single-numa-node)",
            extra={"memory_nodes": nodes},
        )


def _measure_tokenizing(tokenizer: TextTokenizer) -> float:
    """Measure the CPU seconds per token of tokenizing, over texts of many kinds that were not tokenized before."""
    texts = read_parity_texts()
    started = time.process_time()
    tokens = sum(map(len, tokenizer.encode(texts, "", TruncationRules(truncate=True))))
    return (time.process_time() - started) / max(tokens, 1)
