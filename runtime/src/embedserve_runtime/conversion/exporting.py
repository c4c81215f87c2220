"""Exports models of unsupported families by torch, and publishes an export whose outputs equal those of torch."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import numpy as np

from embedserve_runtime.config import ParitySettings, RuntimeConfig
from embedserve_runtime.conversion.benchmark import describe_variant
from embedserve_runtime.cpu.quota import count_usable_cpus
from embedserve_runtime.engines.onnx.artifacts import PLAIN, REPORT_FILE, ConversionReport, Variant
from embedserve_runtime.engines.onnx.bundled import BundledOnnxEngine
from embedserve_runtime.errors import ConfigError, ModelInvalid, UnsupportedArchitecture
from embedserve_runtime.forward.arrays import FloatArray, Int32Array
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.model.bundled_onnx import describe_graph_encoder, read_graph, read_graph_config
from embedserve_runtime.model.exports import (
    ADVICE,
    EXPORT_FILE,
    KIND,
    can_export,
    describe_origin,
    export_name,
)
from embedserve_runtime.model.files import ModelFiles
from embedserve_runtime.model.folder import ModelFolder
from embedserve_runtime.model.hf_files.tokenizers import TOKENIZER_FILE
from embedserve_runtime.model.modules import read_layout
from embedserve_runtime.model.onnx_outputs import HIDDEN, LOGITS
from embedserve_runtime.model.tensors import ModelTensors
from embedserve_runtime.model.vocabulary import parse_tokenizer
from embedserve_runtime.parity.corpus import choose_evenly, read_parity_texts
from embedserve_runtime.parity.measures import ComparedOutputs, compare, describe_shortfalls
from embedserve_runtime.sources import LocatedModel
from embedserve_runtime.store import publish_folder, remove_folder

log = logging.getLogger(__name__)

# The same numbers in another order of sums: anything further off is another model.
FLOOR = ParitySettings(min_mean_cosine=0.99999, min_cosine=0.9999, min_rank_agreement=0.999)
MAX_TOKENS = 128
TOKENS = 2048
# Texts of a batch: of several lengths, so that padding is tried too.
BATCH = 8


def export(config: RuntimeConfig, located: LocatedModel, source: ModelFolder) -> str:
    """Publish the export in the store and return its name. source: the model's folder.

    Raises ConfigError, ModelError and VolumeError.
    """
    if not can_export():
        raise UnsupportedArchitecture(
            f"{config.model.source_name} is of no family that is run here; {ADVICE}"
        )
    folder = read_layout(source.files, source.routes.documents).modules.transformer
    encoder_files, checkpoint = (
        source.files.enter_folder(folder),
        ModelTensors(located.folder).open_checkpoint(folder),
    )
    output = LOGITS if read_graph_config(encoder_files).classifies else HIDDEN
    missing = sorted({*config.onnx.outputs} - {output})
    if missing:
        raise ConfigError(
            f"onnx.outputs: {', '.join(missing)} cannot be written for {config.model.source_name}, which torch exports "
            f"with {output} alone"
        )
    if config.onnx.precision not in ("auto", (PLAIN,)):
        log.warning("onnx.precision is not used: what torch exports runs in float32")
    root, name = config.model.store.expanduser(), export_name(describe_origin(encoder_files, checkpoint))
    if config.onnx.convert == "Always":
        remove_folder(root, KIND, name)
    threads = config.engine.threads or count_usable_cpus()
    publish_folder(
        root, KIND, name, lambda folder: _fill(folder, encoder_files, threads), made_from=located.digest
    )
    return name


def _fill(folder: Path, encoder_files: ModelFiles, threads: int) -> None:
    # Imported here: torch and transformers are extras.
    from embedserve_runtime.engines.torch.transformers_model import TransformersModel

    model = TransformersModel.open(encoder_files.path)
    model.export(folder / EXPORT_FILE)
    task = "classify" if model.output == LOGITS else "embed"
    graph = read_graph(encoder_files, folder / EXPORT_FILE, task=task, pooled=False)
    encoder = describe_graph_encoder(encoder_files, graph)
    texts = _sample_texts(encoder_files, min(encoder.max_positions, MAX_TOKENS))
    reference = [model.run(text) for text in texts]
    engine = BundledOnnxEngine(graph, encoder.hidden_size, threads)
    began = time.perf_counter()
    exported = [
        rows
        for start in range(0, len(texts), BATCH)
        for rows in _run(engine, texts[start : start + BATCH], whole_rows=model.output == LOGITS)
    ]
    speed = sum(map(len, texts)) / (time.perf_counter() - began)
    variant = _judge(
        _summarize_outputs(reference, model.output), _summarize_outputs(exported, model.output), speed
    )
    if not variant.published:
        raise ModelInvalid(f"the export of {encoder_files.path} is not what torch computes: {variant.reason}")
    report = ConversionReport(chosen=PLAIN, variants=(variant,))
    (folder / REPORT_FILE).write_text(report.model_dump_json(by_alias=True, indent=1) + "\n")
    log.info("model exported", extra={"min_cosine": variant.min_cosine, "texts": len(texts)})


def _sample_texts(encoder_files: ModelFiles, max_length: int) -> list[Int32Array]:
    tokenizer = parse_tokenizer(encoder_files.require(TOKENIZER_FILE))
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length)
    encodings = tokenizer.encode_batch(read_parity_texts())
    texts = [np.array(encoding.ids, dtype=np.int32) for encoding in encodings]
    return [texts[number] for number in choose_evenly([*map(len, texts)], TOKENS)]


def _run(engine: BundledOnnxEngine, texts: list[Int32Array], *, whole_rows: bool) -> list[FloatArray]:
    """Run texts and return the rows of each."""
    batch = PackedBatch.pack(texts)
    outputs = engine.run(batch, rows=whole_rows, hidden=not whole_rows)
    if whole_rows:
        assert outputs.rows is not None, "asked for"
        return [row[None] for row in outputs.rows]
    assert outputs.hidden is not None, "asked for"
    return np.split(outputs.hidden, batch.cu_seqlens[1:-1])


def _summarize_outputs(rows: list[FloatArray], output: str) -> ComparedOutputs:
    """Return the mean of a text's rows, and of a classifier, which gives few numbers, its logits for the ranks too."""
    means = np.stack([vectors.mean(axis=0) for vectors in rows])
    return ComparedOutputs(means, means if output == "logits" and means.shape[1] < len(means) else None)


def _judge(reference: ComparedOutputs, exported: ComparedOutputs, speed: float) -> Variant:
    parity = compare(reference, exported)
    return describe_variant(PLAIN, parity, describe_shortfalls(parity, FLOOR), speed)
