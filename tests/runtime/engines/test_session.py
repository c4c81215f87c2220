from __future__ import annotations

from embedserve_runtime.engines.onnx.session import session_options


def test_threads_that_wait_for_a_batch_leave_the_cores_to_others() -> None:
    options = session_options(3)
    assert options.intra_op_num_threads == 3
    assert options.get_session_config_entry("session.force_spinning_stop") == "1"


def test_threads_stay_awake_for_a_few_microseconds_between_the_operators_of_a_batch() -> None:
    options = session_options(3)
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "1"
    assert options.get_session_config_entry("session.intra_op.spin_duration_us") == "10"
