from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from embedserve_runtime.engines.onnx.session import build_session_options


def test_threads_that_wait_for_a_batch_leave_the_cores_to_others() -> None:
    options = build_session_options(3)
    assert options.intra_op_num_threads == 3
    assert options.get_session_config_entry("session.force_spinning_stop") == "1"


def test_threads_stay_awake_for_a_few_microseconds_between_the_operators_of_a_batch() -> None:
    options = build_session_options(3)
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "1"
    assert options.get_session_config_entry("session.intra_op.spin_duration_us") == "10"


def test_no_plan_of_memory_is_kept_for_each_shape_of_a_batch() -> None:
    assert not build_session_options(3).enable_mem_pattern


PROGRAM = """
from embedserve_runtime.engines.onnx.session import build_session_options
from onnx import TensorProto, helper
import onnxruntime
value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "graph", [value], [result])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
onnxruntime.InferenceSession(model.SerializeToString(), build_session_options(1))
"""


def test_the_library_reports_nothing_to_its_maker(tmp_path: Path) -> None:
    """A library that reports keeps an identifier of the device in the home folder, and what is still to be sent."""
    home = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", PROGRAM], env=home, check=True)
    assert list(tmp_path.rglob("*onnxruntime*")) == []
