"""Settings of how vectors are computed: `engine`, and `onnx` with its parity floors."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from embedserve_runtime.config.base import SettingsGroup

ThreadCount = Annotated[int, Field(ge=1, le=1024)]
ParityFloor = Annotated[float, Field(ge=-1, le=1)]


class EngineSettings(SettingsGroup):
    """The settings of the forward pass."""

    kind: Literal["auto", "onnx", "torch", "static"] = Field(
        default="auto",
        description="What runs the model. `auto` takes onnx where it can run the model, else torch if that is "
        "installed; static for tables of token vectors, which neither of the two runs.",
    )
    precision: Literal["auto", "float32", "bfloat16", "float16", "fp8", "int8"] = Field(
        default="auto",
        description="Precision of weights and products. `auto`: on a CPU the fastest published variant of a converted "
        "artifact, float32 without one; 16 bit on a GPU. onnx runs float32, and what an artifact has published; "
        "float32 and a warning where it lacks the one asked for. fp8 and int8 on a GPU: products in 8 bit, if the "
        "vectors stay close enough to those in 16 bit.",
    )
    min_cosine: ParityFloor = Field(
        default=0.999,
        description="fp8 and int8 on a GPU: least cosine of a text's vector to that in 16 bit, on a text set at start. "
        "Below it the model runs in 16 bit. The default is nearer than neighbours in a large collection are.",
    )
    attention: Literal["auto", "fused", "flash", "varlen", "grouped"] = Field(
        default="auto",
        description="Attention of the torch engine. `auto` takes the fastest that can run the model. flash: "
        "flash-attn-4 (extra `flash`) for every batch; with `auto` and `fused`'s encoder it takes long texts where a "
        "timing at start shows that it is faster.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto",
        description="Where the model runs. `auto`: on the CPU with onnx, with torch on the GPUs that the process sees, "
        "else on the CPU. cuda needs torch and a GPU; cpu leaves the GPUs alone.",
    )
    devices: PositiveInt | Literal["auto"] = Field(
        default="auto",
        description="GPUs, each with an engine of its own behind one queue; `auto` takes all that the process sees.",
    )
    threads: ThreadCount | None = Field(
        default=None, description="Compute threads; by default the container's CPU quota, rounded up."
    )
    one_node: bool = Field(
        default=True,
        description="On a machine with several NUMA nodes, stay on the CPUs of one if the quota, or the compute "
        "threads that are set, fit on it. Not with the torch engine.",
    )


ConvertedPrecision = Literal["float32", "float16", "int8"]


class ParitySettings(SettingsGroup):
    """The closeness to the plain float32 graph that a converted variant must reach to be published."""

    min_mean_cosine: ParityFloor = Field(
        default=0.998, description="Least mean cosine of its vectors to float32's, over the corpus."
    )
    min_cosine: ParityFloor = Field(
        default=0.99, description="Least cosine of any of its vectors to float32's."
    )
    min_rank_agreement: ParityFloor = Field(
        default=0.99,
        description="Least rank correlation (Spearman) of its scores with float32's: similarities of pairs of texts, "
        "or what a reranker or classifier gives.",
    )


class OnnxSettings(SettingsGroup):
    """Conversion into a stored ONNX artifact: what `embedserve convert` makes and `embedserve serve` takes."""

    convert: Literal["Never", "IfNeeded", "Always"] = Field(
        default="IfNeeded",
        description="`IfNeeded`: `convert` makes an artifact unless the store has it, `serve` takes one that is there. "
        "`Always`: `convert` makes it anew. `Never`: `convert` does nothing, `serve` writes its graph at start.",
    )
    precision: tuple[ConvertedPrecision, ...] | Literal["auto"] = Field(
        default="auto",
        description="Variants to make and try beside float32, which is always made. `auto`: all that can be faster "
        "than float32 on this processor.",
    )
    outputs: tuple[Literal["last_hidden_state", "sentence_embedding", "logits"], ...] = Field(
        default=(),
        description="Besides, each published variant as an ONNX file with the usual padded inputs and these outputs, "
        "`standard.onnx`, for other programs and for `model.onnx_file`; none: no such file.",
    )
    parity: ParitySettings = ParitySettings()
