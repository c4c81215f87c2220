"""The number of forms of each Triton kernel that an encoder makes compile: few, whatever sizes its batches have.

Triton's own look at the arguments, without a GPU: a stand-in for its driver names one, and its hook before compiling
says that it is done.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from embedserve_runtime.engines.torch.device_batch import DeviceBatch, copy_to_device
from embedserve_runtime.engines.torch.fused.support import EightBit
from embedserve_runtime.engines.torch.graphs import MAX_TOKENS, choose_buckets
from embedserve_runtime.engines.torch.kernel_forms import count_forms
from embedserve_runtime.engines.torch.parameters import Normalization, Parameters
from embedserve_runtime.errors import EngineFailure
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.model.architecture import NormKind
from embedserve_runtime.model.checkpoint import Checkpoint, Weights
from embedserve_runtime.model.pipeline import Pooling
from tests.runtime.engines.test_forms import LAYERS, VOCABULARY, encoder_of, random_parameters

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed"),
]

# Of all kernels together. A form takes the compiler up to some seconds.
MAX_AT_START = 30
# Batches that no graph is for may have any number of tokens: a multiple of 16 or not, or one.
MAX_LATER = 15
# Bytes of a thread: four of its 240 registers.
MAX_ON_STACK = 16


class Forms:
    """Records the forms of each kernel that would have been compiled."""

    def __init__(self) -> None:
        self._keys: set[tuple[str, str]] = set()

    def __call__(self, **facts: object) -> bool:
        """Triton's hook before it compiles; True: there is nothing to be done."""
        name = getattr(facts["fn"], "name", "")
        self._keys.add((str(name), str(facts["key"])))
        return True

    @property
    def by_kernel(self) -> Counter[str]:
        return Counter(name for name, _ in self._keys)


class Hopper:
    """The driver that Triton asks before it compiles."""

    def get_current_target(self) -> object:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        # One that no machine has: Triton keeps what it knows of a device.
        return 99

    def get_current_stream(self, _: int) -> int:
        return 0


class Compiled(Hopper):
    """A driver that loads what is compiled into no card, and launches nothing."""

    def __init__(self) -> None:
        self.programs: list[bytes] = []

    @property
    def utils(self) -> Compiled:
        return self

    def launcher_cls(self, *_: object) -> Callable[..., None]:
        return lambda *_: None

    def get_device_properties(self, _: int) -> dict[str, int]:
        return {"max_shared_mem": 227 * 1024}

    def load_binary(self, _name: str, program: bytes, *_: object) -> tuple[object, ...]:
        self.programs.append(program)
        return self, self, 0, 0, 1024


@pytest.fixture
def _hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime.driver import driver

    monkeypatch.setattr(driver, "_active", Hopper())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    properties = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: properties)


@pytest.fixture
def forms(monkeypatch: pytest.MonkeyPatch) -> Forms:
    import triton

    counted = Forms()
    monkeypatch.setattr(triton.knobs.runtime, "jit_cache_hook", counted)
    return counted


def run_of(folder: Path, kind: EightBit | None, form: str) -> Callable[[DeviceBatch], None]:
    """The forward pass of an encoder, and mean pooling."""
    from embedserve_runtime.engines.torch.fused.encoder import FusedEncoder
    from embedserve_runtime.engines.torch.fused.operations import pool

    plain = encoder_of(LAYERS[form])
    layers = tuple(
        replace(
            layer,
            attention=replace(layer.attention, heads=4, kv_heads=4, head_size=16),
            mlp=replace(layer.mlp, intermediate=128),
        )
        for layer in plain.layers
    )
    encoder = replace(plain, hidden_size=64, layers=layers)
    save_file(dict(random_parameters(encoder)), folder / "model.safetensors")
    parameters = Parameters(Weights(encoder, Checkpoint.open(folder)), torch.device("cpu"), torch.bfloat16)
    fused = FusedEncoder.build(encoder, parameters, eight_bit=kind)

    def run(batch: DeviceBatch) -> None:
        hidden = fused(batch)
        pool(hidden, batch, Pooling.MEAN, torch.empty((batch.sequences, hidden.shape[1])), 0)

    return run


@pytest.mark.usefixtures("_hopper")
@pytest.mark.parametrize("form", ["learned bias by bucket", "norms first"])
@pytest.mark.parametrize("kind", [None, *EightBit])
def test_a_start_compiles_few_forms_of_kernels_and_batches_without_a_graph_add_few(
    tmp_path: Path, forms: Forms, kind: EightBit | None, form: str
) -> None:
    run = run_of(tmp_path, kind, form)
    with torch.inference_mode():
        # Beyond, buckets differ by nothing that kernels are told.
        for capacity in [
            bucket
            for bucket in choose_buckets(MAX_TOKENS)
            if bucket.tokens <= 6144 or bucket.tokens == MAX_TOKENS
        ]:
            run(DeviceBatch.view_storage(torch.zeros(capacity.integers, dtype=torch.int32), capacity))
        at_start = forms.by_kernel.total()
        assert 5 < at_start <= MAX_AT_START, forms.by_kernel
        source = np.random.default_rng(1)
        for sequences in range(1, 60):
            lengths = source.integers(1, 40, sequences)
            batch = PackedBatch.pack([source.integers(0, VOCABULARY, n).astype(np.int32) for n in lengths])
            run(copy_to_device(batch, torch.device("cpu")))
    assert forms.by_kernel.total() - at_start <= MAX_LATER, forms.by_kernel


@pytest.mark.usefixtures("_hopper")
def test_a_kernel_that_is_compiled_anew_for_every_batch_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from embedserve_runtime.engines.torch.fused.kernels.rows import activate

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    values = torch.zeros(64)

    def compile_form(block: int) -> None:
        activate.warmup(
            inner=values, out=values, total=64, width=8, GATED=False, KIND=2, BLOCK=block, grid=(1,)
        )

    with count_forms(max_forms=2) as counter:
        for block in (16, 32, 16):
            compile_form(block)
        with pytest.raises(EngineFailure, match="kernel activate was compiled in more than 2 forms"):
            compile_form(64)
    assert counter.forms == {"activate": 3}
    # Nobody counts outside.
    compile_form(128)
    assert counter.forms == {"activate": 3}


@pytest.mark.usefixtures("_hopper")
@pytest.mark.parametrize(
    "form",
    [
        "16 bit",
        "gated",
        "8 bit with residual",
        "8 bit with deferred residual",
        "8 bit, rows without scales",
        "8 bit to e4m3",
    ],
)
def test_the_product_for_hopper_fits_and_keeps_its_sums_in_registers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    import triton
    from triton.runtime.driver import driver

    from embedserve_runtime.engines.torch.fused.deferred_norm import DeferredLayerNorm
    from embedserve_runtime.engines.torch.fused.hopper import EightBitSides, HopperProduct

    compiled = Compiled()
    monkeypatch.setattr(driver, "_active", compiled)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    eight = form.startswith("8 bit")
    inner, outer = torch.int8 if eight else torch.bfloat16, torch.bfloat16
    scales = torch.zeros(256)
    sides = EightBitSides(None if "rows without" in form else scales, scales) if eight else None
    if form == "8 bit to e4m3":
        outer, sides = torch.float8_e4m3fn, EightBitSides(scales, scales, scales, scales)
    product = HopperProduct(
        torch.zeros((256, 128), dtype=inner), torch.zeros(256), kind=0, gated=form == "gated"
    )
    out = torch.zeros((256, product.columns), dtype=outer)
    residual: torch.Tensor | DeferredLayerNorm | None = out if form == "8 bit with residual" else None
    if form == "8 bit with deferred residual":
        residual = DeferredLayerNorm(
            out, scales, scales, Normalization(NormKind.LAYER, 1e-12, scales, scales)
        )
    product(torch.zeros((256, 128), dtype=inner), out, residual=residual, eight=sides)

    file = tmp_path / "product.cubin"
    file.write_bytes(compiled.programs[0])
    command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", str(file)]
    usage = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    # What registers have no room for is on the stack: the sums would be 512 bytes of a thread.
    on_stack = re.search(r"STACK:(\d+)", usage)
    assert on_stack is not None
    assert int(on_stack[1]) <= MAX_ON_STACK
