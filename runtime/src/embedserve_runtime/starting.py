"""From settings to a model that is ready to serve: loaded, warmed up, and measured on this machine."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

from embedserve_runtime.config import RuntimeConfig
from embedserve_runtime.cpu_quota import memory_nodes, usable_cpus
from embedserve_runtime.cpu_split import CpuSplit, split_cpus
from embedserve_runtime.engines.base import PackedBatch
from embedserve_runtime.loading import load_runners
from embedserve_runtime.parity.corpus import parity_texts
from embedserve_runtime.results import Results
from embedserve_runtime.runner import Runner
from embedserve_runtime.scheduling.calibration import Calibration, calibrate, rate, warm_up
from embedserve_runtime.tokenizing import CutRules, TextTokenizer

log = logging.getLogger(__name__)

# Enough for three budgets of a small model on two cores, and for all of them on a GPU.
CALIBRATION_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Started:
    """runners: one a device. split: None where no cores are shared, since the engine is none of a CPU's or its threads
    are a setting."""

    runners: Sequence[Runner]
    tokenizer: TextTokenizer
    max_batch_tokens: int
    calibration: Calibration | None
    split: CpuSplit | None


def start(config: RuntimeConfig, loaded: Callable[[], object]) -> Started:
    """Blocks until the model can serve. loaded: called once when it is in memory. Raises what `load_runners` does."""
    begun = time.perf_counter()
    runners = load_runners(config)
    tokenizer = TextTokenizer.from_card(runners[0].card)
    log.info(
        "model loaded",
        extra={
            "seconds": round(time.perf_counter() - begun, 3),
            "engines": [asdict(runner.engine) for runner in runners],
        },
    )
    loaded()
    calibration = _measured(config, runners, tokenizer)
    split = _split(config, runners[0], tokenizer, calibration)
    if split is not None and split.engine != runners[0].engine.threads:
        engine = config.engine.model_copy(update={"threads": split.engine})
        # Let go before the same model is loaded again.
        runners = []
        runners = load_runners(config.model_copy(update={"engine": engine}))
        calibration = _measured(config, runners, tokenizer)
    budget = config.batching.max_batch_tokens
    if calibration is not None:
        budget = calibration.budget
        rates = {str(m.budget): round(m.tokens_per_second) for m in calibration.measurements}
        log.info("token budget chosen", extra={"max_batch_tokens": budget, "tokens_per_second": rates})
    assert budget != "auto", "calibrated"
    # What is alive now stays alive: later collections need not look at it.
    gc.collect()
    gc.freeze()
    gc.enable()
    return Started(runners, tokenizer, budget, calibration, split)


def _measured(
    config: RuntimeConfig, runners: Sequence[Runner], tokenizer: TextTokenizer
) -> Calibration | None:
    """All warmed up, the first calibrated; None where the budget is a setting."""
    size = tokenizer.vocabulary_size
    for runner in runners:
        warm_up(_main_run(runner), max_length=runner.card.max_length, vocabulary_size=size)
    if config.batching.max_batch_tokens != "auto":
        return None
    first = runners[0]
    return calibrate(
        _main_run(first),
        max_length=first.card.max_length,
        vocabulary_size=size,
        seconds=CALIBRATION_SECONDS,
        clock=time.perf_counter,
    )


def _main_run(runner: Runner) -> Callable[[PackedBatch], Results]:
    return partial(runner.run, wanted=runner.card.main_output)


def _split(
    config: RuntimeConfig, runner: Runner, tokenizer: TextTokenizer, calibration: Calibration | None
) -> CpuSplit | None:
    threads = runner.engine.threads
    if threads is None or config.engine.threads is not None:
        return None
    tokens_rate = (
        calibration.tokens_per_second
        if calibration is not None
        else rate(
            _main_run(runner),
            max_length=runner.card.max_length,
            vocabulary_size=tokenizer.vocabulary_size,
            clock=time.perf_counter,
        )
    )
    split = split_cpus(
        usable_cpus(),
        tokenizing=_tokenizing_seconds(tokenizer),
        engine=threads / tokens_rate,
        processes=config.server.http_workers,
    )
    nodes = memory_nodes()
    log.info("cores shared", extra={"split": asdict(split), "memory_nodes": nodes})
    if len(nodes) > 1 and split.engine > 1:
        log.warning(
            "the engine's threads may run on several NUMA nodes, and its weights lie on one; CPUs of one node for each "
            "replica avoid that (kubelet: cpuManagerPolicy static, topologyManagerPolicy single-numa-node)",
            extra={"memory_nodes": nodes},
        )
    return split


def _tokenizing_seconds(tokenizer: TextTokenizer) -> float:
    """Of CPU time a token, over texts of many kinds that are seen for the first time."""
    texts = parity_texts()
    begun = time.process_time()
    tokens = sum(map(len, tokenizer.encode(texts, "", CutRules(truncate=True))))
    return (time.process_time() - begun) / max(tokens, 1)
