"""Names the kinds of output for error messages."""

from __future__ import annotations

from embedserve_runtime.forward.outputs import OutputKind

OUTPUT_NAMES = {
    OutputKind.DENSE: "dense vectors",
    OutputKind.LOGITS: "scores",
    OutputKind.SPARSE: "sparse vectors",
    OutputKind.MULTI_VECTOR: "multi-vectors",
    OutputKind.HIDDEN: "hidden states",
}


def name_outputs(outputs: OutputKind) -> str:
    return " and ".join(OUTPUT_NAMES[kind] for kind in outputs)
