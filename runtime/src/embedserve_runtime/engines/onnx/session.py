"""Creates sessions of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import EPFail, Fail, InvalidArgument, RuntimeException

from embedserve_runtime.errors import ModelInvalid
from embedserve_runtime.progress import track_work

# What a run can raise; the library's exceptions have no common base.
RUN_ERRORS = (EPFail, Fail, InvalidArgument, RuntimeException)
PROVIDERS = ["CPUExecutionProvider"]
# On ARM with bfloat16, products of MatMul with a constant matrix are made in it; those of Gemm, which a fusion would
# make of MatMul and Add, are not. Elsewhere the first entry does nothing.
BFLOAT16_PRODUCTS = MappingProxyType(
    {
        "mlas.enable_gemm_fastmath_arm64_bfloat16": "1",
        "optimization.disable_specified_optimizers": "MatMulAddFusion",
    }
)

# How long a thread looks for more work before it sleeps. Measured with MiniLM on two Zen 4 cores: with 10 a lone short
# text gains nearly as much as with 50, and two batches at once lose from 20 on.
SPIN_MICROSECONDS = 10


def build_session_options(threads: int) -> onnxruntime.SessionOptions:
    """Build the options of a session. threads: its compute threads, the calling one included."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # A plan of memory for each shape of a batch: requests have ever new shapes, so it is seldom used, is kept for ever,
    # and takes all of the memory of a run at once besides what the run before took. Without it a long text takes half
    # as much, and a short one up to 3 % less time (docs/engineering/memory.md).
    options.enable_mem_pattern = False
    # From the end of one operator to the begin of the next a thread stays awake, since to wake it takes longer. Beyond
    # that it leaves the cores to others: to a second batch, and between batches to all that goes on around the engine.
    options.add_session_config_entry("session.intra_op.allow_spinning", "1")
    options.add_session_config_entry("session.intra_op.spin_duration_us", str(SPIN_MICROSECONDS))
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return options


def build_releasing_options() -> onnxruntime.RunOptions:
    """Build options of a run after which the session's arena gives back to the system what nothing uses."""
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return options


def load_session(
    file: Path, threads: int, entries: Mapping[str, str] = MappingProxyType({})
) -> onnxruntime.InferenceSession:
    """Load an ONNX file into a session.

    entries: of its configuration. Raises ModelInvalid when ONNX Runtime cannot load it.
    """
    options = build_session_options(threads)
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    try:
        with track_work("preparing ONNX Runtime"):
            return onnxruntime.InferenceSession(str(file), options, providers=PROVIDERS)
    except Exception as error:  # its exceptions have no common base, and every file can fail in its own way
        raise ModelInvalid(f"{file} cannot be loaded by ONNX Runtime: {error}") from error
