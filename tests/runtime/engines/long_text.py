"""Runs one long text through each form of attention on the ONNX engine and prints how far memory has grown, in MiB: at
its greatest, and what is still held afterwards.

    python -m tests.runtime.engines.long_text LENGTH FORM ...

A program of its own, since the greatest memory of a process never becomes less.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
from safetensors.numpy import save_file

from embedserve_runtime.engines.onnx.engine import OnnxEngine
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.model.activations import Activation
from embedserve_runtime.model.architecture import (
    Alibi,
    Attention,
    Disentangled,
    Embeddings,
    Encoder,
    Layer,
    Mlp,
    Norm,
    NormKind,
    NormPlacement,
    RelativeBuckets,
)
from embedserve_runtime.model.checkpoint import Checkpoint, Weights
from embedserve_runtime.model.parameter_names import ParameterNames, TensorSource

HEADS = 4
VOCABULARY = 31
NORM = Norm(NormKind.LAYER, 1e-5)
PLAIN = Attention(heads=HEADS, kv_heads=HEADS, head_size=8, scale=8**-0.5, qkv_bias=True, output_bias=True)
FORMS: Mapping[str, Attention] = {
    "plain": PLAIN,
    "window": replace(PLAIN, window=64),
    "causal": replace(PLAIN, causal=True),
    "causal window": replace(PLAIN, causal=True, window=200),
    "capped": replace(PLAIN, soft_cap=0.5),
    "capped causal window": replace(PLAIN, soft_cap=0.5, causal=True, window=200),
    "ALiBi": replace(PLAIN, distance_bias=Alibi((0.5, 0.25, 0.1, 0.01))),
    "relative": replace(PLAIN, distance_bias=RelativeBuckets(buckets=12, max_distance=20)),
    "disentangled": replace(
        PLAIN,
        disentangled=Disentangled(
            span=16,
            buckets=16,
            max_distance=60,
            content_to_position=True,
            position_to_content=True,
            shared_projections=True,
            norm=NORM,
        ),
    ),
}
KIB_IN_MIB = 1024


def describe_encoder(attention: Attention, max_positions: int) -> Encoder:
    """One layer with this attention; the checkpoint uses our own names."""
    mlp = Mlp(intermediate=28, activation=Activation.GELU, gated=False, up_bias=True, down_bias=True)
    without_names = Encoder(
        family="hand-made",
        hidden_size=20,
        max_positions=max_positions,
        embeddings=Embeddings(VOCABULARY, None, 0, NORM),
        layers=(Layer(attention, mlp, NormPlacement.POST, NORM),),
        final_norm=None,
        parameter_names=ParameterNames(("",), MappingProxyType({})),
    )
    sources = {p.pattern: (TensorSource(p.pattern),) for p in without_names.parameters()}
    return replace(without_names, parameter_names=ParameterNames(("",), MappingProxyType(sources)))


def build_engine(encoder: Encoder, *, has_attention_mask: bool = False) -> OnnxEngine:
    """The engine with random weights, the same at every call."""
    source = np.random.default_rng(0)
    parameters = {p.name: source.normal(0.1, 0.4, p.shape).astype(np.float32) for p in encoder.parameters()}
    with tempfile.TemporaryDirectory() as folder:
        save_file(parameters, Path(folder) / "model.safetensors")
        weights = Weights(encoder, Checkpoint.open(Path(folder)))
        return OnnxEngine.build(encoder, weights, threads=1, has_attention_mask=has_attention_mask)


def draw_sequence(length: int, seed: int = 0) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, length).astype(np.int32)


def _read_status(field: str) -> float:
    """MiB, from Linux: VmHWM is the greatest memory of this program alone, where getrusage's goes on from that of the
    process that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"{field}:"))) / KIB_IN_MIB


def _main(length: int, forms: list[str]) -> None:
    for form in forms:
        engine = build_engine(describe_encoder(FORMS[form], length))
        engine.forward(PackedBatch.pack([draw_sequence(1)]))
        peak, resident = _read_status("VmHWM"), _read_status("VmRSS")
        engine.forward(PackedBatch.pack([draw_sequence(length)]))
        grown = _read_status("VmHWM") - peak
        print(f"{grown:.1f} {_read_status('VmRSS') - resident:.1f}", flush=True)


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2:])
