"""What errors call the kinds of results."""

from __future__ import annotations

from embedserve_runtime.forward.outputs import Output

OUTPUT_NAMES = {
    Output.DENSE: "dense vectors",
    Output.LOGITS: "scores",
    Output.SPARSE: "sparse vectors",
    Output.MULTI_VECTOR: "multi-vectors",
    Output.HIDDEN: "hidden states",
}


def name_outputs(outputs: Output) -> str:
    return " and ".join(OUTPUT_NAMES[one] for one in outputs)
