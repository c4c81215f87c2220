"""Converted models in the store: what decides one, how it is found, which of its variants runs.

    artifacts/<name>/manifest.json        of the store: size and SHA-256 of each file
    artifacts/<name>/inputs.json          what the name is the hash of
    artifacts/<name>/report.json          how each variant compared with float32, and its speed
    artifacts/<name>/<precision>/model.onnx, weights     the variants that are published
    artifacts/<name>/<precision>/standard.onnx           the same with padded inputs, where outputs are asked for

Equal inputs give equal graphs, byte by byte. Only the report differs, since it has times in it.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from embedserve_runtime.config import OnnxSettings, ParitySettings
from embedserve_runtime.cpu.features import detect_instruction_set, has_bfloat16_products
from embedserve_runtime.engines.onnx.graph import OPSET, OUTPUT
from embedserve_runtime.engines.onnx.nodes import FUSED
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.store import find_folder
from embedserve_runtime.store.manifest import read_manifest

log = logging.getLogger(__name__)

MODEL_FILE = "model.onnx"
STANDARD_FILE = "standard.onnx"
WEIGHTS_FILE = "weights"
INPUTS_FILE = "inputs.json"
REPORT_FILE = "report.json"
KIND: Final = "artifacts"
# Raised with each change of what the same inputs give.
CONVERTER_VERSION = "6"
PLAIN = "float32"
# What `onnx.precision: auto` tries, the second where the processor has it. float16 weights take less room and are not
# faster on any CPU.
AUTOMATIC = ("int8", "bfloat16")
OPERATORS = f"ai.onnx {OPSET}, {FUSED} 1"


class _Json(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)


class Inputs(_Json):
    """Everything that decides the content of an artifact.

    outputs: the packed graph's, then those of the standard file. encoder: digest of the description that the graph is
    written from. hides_tokens: see `graph.build`.
    """

    vector_space: str
    encoder: str
    hides_tokens: bool
    outputs: tuple[str, ...]
    operators: str
    variants: tuple[str, ...]
    floor: ParitySettings
    instruction_set: str
    converter: str

    @property
    def name(self) -> str:
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:32]


class Variant(_Json):
    """A converted variant: its precision, and what was measured of it.

    reason: why it is not published, empty if it is.
    """

    precision: str
    published: bool
    reason: str
    mean_cosine: float
    min_cosine: float
    max_difference: float
    rank_agreement: float
    tokens_per_second: float


class ConversionReport(_Json):
    """The outcome of a conversion.

    chosen: the fastest published variant.
    """

    chosen: str
    variants: tuple[Variant, ...]


@dataclass(frozen=True, slots=True)
class Artifact:
    """A complete converted model in the store."""

    name: str
    folder: Path
    report: ConversionReport

    def get_path(self, precision: str) -> Path:
        return self.folder / precision / MODEL_FILE

    def digest_variant(self, precision: str) -> str:
        """Return the first 12 hex digits of SHA-256 over the digests of a variant's files, as the store has them."""
        manifest, folder = read_manifest(self.folder), f"{precision}/"
        files = [] if manifest is None else manifest.files
        listed = [f"{file.path} {file.sha256}" for file in files if file.path.startswith(folder)]
        return hashlib.sha256("\n".join(listed).encode()).hexdigest()[:12]

    def choose_variant(self, precision: str) -> Variant:
        """Return the variant to run with `precision` as the setting: the fastest for `auto`, float32 for one that is
        not published."""
        name = self.report.chosen if precision == "auto" else precision
        published = {variant.precision: variant for variant in self.report.variants if variant.published}
        return published.get(name) or published[PLAIN]


def describe_inputs(card: ModelCard, settings: OnnxSettings) -> Inputs:
    """Return what an artifact is made from on this machine, whose arithmetic decides numbers and speed of variants."""
    able = AUTOMATIC if has_bfloat16_products() else AUTOMATIC[:1]
    precisions = able if settings.precision == "auto" else settings.precision
    return Inputs(
        vector_space=card.vector_space,
        encoder=hashlib.sha256(repr(card.encoder).encode()).hexdigest(),
        hides_tokens=card.has_attention_mask,
        outputs=(OUTPUT, *sorted(set(settings.outputs))),
        operators=OPERATORS,
        variants=(PLAIN, *sorted(set(precisions) - {PLAIN})),
        floor=settings.parity,
        instruction_set=detect_instruction_set(),
        converter=CONVERTER_VERSION,
    )


def find_artifact(root: Path, name: str) -> Artifact | None:
    """Find an artifact that is complete; files are compared with the manifest by their size. A damaged one is logged
    and not used."""
    folder = root / KIND / name
    try:
        if not folder.exists():
            return None
        if find_folder(root, KIND, name) is None:
            log.warning("the converted model is damaged and not used", extra={"folder": str(folder)})
            return None
        report = ConversionReport.model_validate_json((folder / REPORT_FILE).read_bytes())
    except (OSError, ValidationError) as error:
        log.warning("the converted model is not used", extra={"folder": str(folder), "error": str(error)})
        return None
    return Artifact(name, folder, report)
