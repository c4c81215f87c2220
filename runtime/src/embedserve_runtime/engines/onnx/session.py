"""How sessions of ONNX Runtime are set up here."""

from __future__ import annotations

import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import EPFail, Fail, InvalidArgument, RuntimeException

# What a run can raise; the library's exceptions have no common base.
RUN_ERRORS = (EPFail, Fail, InvalidArgument, RuntimeException)
PROVIDERS = ["CPUExecutionProvider"]


def session_options(threads: int) -> onnxruntime.SessionOptions:
    """threads: compute threads of the session, the calling one included."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Spinning threads burn the CPU quota of the container while the engine is idle between batches.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options
