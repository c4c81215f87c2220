"""The self-test of the torch engine: on the CPU always, on each GPU what its generation has."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from embedserve_runtime.engines.checks import Check, CheckStatus, compare_hidden_states
from embedserve_runtime.engines.torch.devices import choose_dtype, get_device_name
from embedserve_runtime.engines.torch.engine import TorchEngine
from embedserve_runtime.engines.torch.fused.support import (
    EightBit,
    find_eight_bit_obstacle,
    find_triton_obstacle,
)
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.checkpoint import Weights

# As the tests have them: float32 and 16 bit to another engine's float32, and a token's hidden state in 8 bit.
MIN_COSINE = 0.9995
MIN_EIGHT_BIT_COSINE = 0.99
# From Turing to Blackwell, as the operator's hardware classes name them.
GENERATIONS = ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0")
# torch's wheels for ARM begin with the next one, and so do the classes there.
NOT_ON_ARM = ("7.5",)
CPU = torch.device("cpu")


def run_torch_checks(
    encoder: Encoder, weights: Weights, batch: PackedBatch, reference: FloatArray
) -> Iterator[Check]:
    """Yield the checks of torch and of each device. reference: the hidden states of another engine."""
    sample = _Sample(encoder, weights, batch, reference)
    hidden = _run_forward(sample, CPU, choose_dtype(None))
    yield compare_hidden_states("torch engine on the CPU", hidden, reference, MIN_COSINE)
    yield check_generations(
        platform.machine(), (torch._C._cuda_getArchFlags() or "") if torch.version.cuda else ""
    )
    yield _check_compiler()
    if not torch.cuda.is_available():
        for name in ("CUDA device", "fused kernels", "CUDA graphs", "fp8", "int8"):
            yield Check(name, CheckStatus.NOT_CHECKED, f"torch {torch.__version__} sees no CUDA device")
        return
    for number in range(torch.cuda.device_count()):
        yield from _run_device_checks(torch.device("cuda", number), sample)


def check_generations(machine: str, flags: str) -> Check:
    """Check which generations of GPUs torch has code for, by its flags; what is compiled for one runs on later ones of
    the same major number. machine: as the kernel names it."""
    expected = [
        generation for generation in GENERATIONS if machine != "aarch64" or generation not in NOT_ON_ARM
    ]
    name = "generations of GPUs"
    if not flags:
        return Check(name, CheckStatus.NOT_CHECKED, f"torch {torch.__version__} is built without CUDA")
    built = {flag.rpartition("_")[2].rstrip("af") for flag in flags.split()}
    pairs = {(int(generation[:-1]), int(generation[-1])) for generation in built if generation.isdigit()}
    missing = [generation for generation in expected if not _can_run(generation, pairs)]
    if missing:
        return Check(name, CheckStatus.FAILED, f"no code for compute capability {', '.join(missing)}")
    return Check(name, CheckStatus.OK, f"code for compute capability {', '.join(expected)}")


def _can_run(generation: str, built: set[tuple[int, int]]) -> bool:
    major, minor = map(int, generation.split("."))
    return any(built_major == major and built_minor <= minor for built_major, built_minor in built)


def _check_compiler() -> Check:
    if find_spec("triton") is None:
        return Check("compiler", CheckStatus.NOT_CHECKED, "triton is not installed")
    path = shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")
    if path is None:
        return Check("compiler", CheckStatus.FAILED, "triton needs a C compiler (gcc) and finds none")
    return Check("compiler", CheckStatus.OK, path)


@dataclass(frozen=True, slots=True, eq=False)
class _Sample:
    """A batch for an encoder, with its hidden states by another engine."""

    encoder: Encoder
    weights: Weights
    batch: PackedBatch
    reference: FloatArray


def _run_device_checks(device: torch.device, sample: _Sample) -> Iterator[Check]:
    reference = sample.reference
    capability = torch.cuda.get_device_capability(device)
    name = f"{get_device_name(device)} ({device}, {capability[0]}.{capability[1]})"
    dtype = choose_dtype(capability)
    dtype_name = str(dtype).removeprefix("torch.")
    yield compare_hidden_states(
        f"{name}: {dtype_name}", _run_forward(sample, device, dtype), reference, MIN_COSINE
    )
    reason = find_triton_obstacle(device)
    if reason is not None:
        yield Check(f"{name}: fused kernels", CheckStatus.NOT_CHECKED, reason)
        return
    graphs = _run_forward(sample, device, dtype, graphs=True)
    yield compare_hidden_states(f"{name}: CUDA graphs", graphs, reference, MIN_COSINE)
    for kind in EightBit:
        reason = find_eight_bit_obstacle(sample.encoder, device, kind)
        if reason is not None:
            yield Check(f"{name}: {kind}", CheckStatus.NOT_CHECKED, reason)
        else:
            hidden = _run_forward(sample, device, kind)
            yield compare_hidden_states(f"{name}: {kind}", hidden, reference, MIN_EIGHT_BIT_COSINE)


def _run_forward(
    sample: _Sample, device: torch.device, precision: torch.dtype | EightBit, *, graphs: bool = False
) -> FloatArray:
    """Run the encoder on a device. Raises EmbedserveError."""
    engine = TorchEngine(sample.encoder, sample.weights, device, precision)
    if graphs:
        engine.prepare(None, sample.batch.tokens)
    return engine.forward(sample.batch)
