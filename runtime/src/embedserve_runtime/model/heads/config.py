"""The keys of config.json that decide a head, and what its families share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import Field, NonNegativeFloat, PositiveFloat

from embedserve_runtime.model.activations import Activation
from embedserve_runtime.model.architecture import Encoder, Norm, NormKind
from embedserve_runtime.model.families.common import read_activation as mlp_activation
from embedserve_runtime.model.files import FileModel, ModelFiles
from embedserve_runtime.model.heads.description import HeadLayer


class CrossEncoderConfig(FileModel):
    """The keys that sentence-transformers 4 and 5 write into a cross-encoder's config.json."""

    activation_fn: str | None = None


class HeadConfig(FileModel):
    """Defaults are those of transformers for a key that is left out."""

    architectures: list[str] | None = None
    id2label: dict[int, str] | None = None
    num_labels: int | None = None
    pad_token_id: int | None = None
    problem_type: str | None = None
    hidden_act: str = "gelu"
    activation: str = "gelu"  # DistilBERT's name for it
    layer_norm_eps: NonNegativeFloat = 1e-12
    tie_word_embeddings: bool = True
    # ModernBERT
    norm_eps: NonNegativeFloat = 1e-5
    norm_bias: bool = False
    classifier_bias: bool = False
    classifier_activation: str = "gelu"
    classifier_pooling: str = "cls"
    decoder_bias: bool = True
    # Token classifiers of decoders
    token_classification_bias: bool = True
    # DeBERTa-v2
    pooler_hidden_act: str = "gelu"
    pooler_hidden_size: int | None = None
    legacy: bool = True
    # Llama with attention to both sides
    pooling: str | None = None
    temperature: PositiveFloat = 1.0
    # Causal language models of Gemma
    final_logit_softcapping: float | None = None
    # Where transformers 4 read the model from that it has saved.
    name_or_path: str = Field(default="", alias="_name_or_path")
    # Cross-encoders: sentence-transformers from 4 on, and before.
    sentence_transformers: CrossEncoderConfig | None = None
    sbert_ce_default_activation_function: str | None = None

    def find_architecture(self, suffix: str) -> str | None:
        """Return the first class of `architectures` with that end of its name; None where there is none."""
        return next((name for name in self.architectures or [] if name.endswith(suffix)), None)


@dataclass(frozen=True, slots=True)
class HeadSource:
    """The sources from which a family's head is read.

    files: of the encoder's folder.
    """

    files: ModelFiles
    config: HeadConfig
    encoder: Encoder

    @classmethod
    def read(cls, files: ModelFiles, encoder: Encoder) -> HeadSource:
        return cls(files, files.parse("config.json", HeadConfig), encoder)

    @property
    def path(self) -> Path:
        """The path of config.json, for error messages."""
        return self.files.path / "config.json"

    @property
    def hidden(self) -> int:
        """Columns of the hidden states that a head reads."""
        return self.encoder.width

    @property
    def width(self) -> int:
        """Columns of the word embeddings."""
        return self.encoder.embeddings.width or self.hidden

    def read_activation(self, field: str) -> Activation:
        """Read the activation that `field` names. Raises UnsupportedArchitecture."""
        return mlp_activation(self.path, field, getattr(self.config, field))

    def describe_square_layer(
        self,
        activation: Activation,
        *names: str,
        bias: bool = True,
        norm: Norm | None = None,
        norm_name: str = "",
    ) -> HeadLayer:
        """Describe a layer from the hidden size to the hidden size."""
        layer = describe_layer(self.hidden, self.hidden, *names, bias=bias, activation=activation)
        return layer if norm is None else add_norm(layer, norm, norm_name)

    def describe_layer_norm(self) -> Norm:
        return Norm(NormKind.LAYER, self.config.layer_norm_eps)


def describe_layer(
    in_features: int,
    out_features: int,
    *names: str,
    bias: bool = True,
    activation: Activation = Activation.IDENTITY,
) -> HeadLayer:
    """Describe a layer whose weight and bias have one common name."""
    return HeadLayer(
        in_features=in_features,
        out_features=out_features,
        weight=tuple(f"{name}.weight" for name in names),
        bias=tuple(f"{name}.bias" for name in names) if bias else (),
        activation=activation,
    )


def add_norm(layer: HeadLayer, norm: Norm, name: str) -> HeadLayer:
    """Return the layer with a norm at its end. name: of the norm's tensors; empty where it is added later."""
    return replace(layer, norm=norm, norm_names=(name,) if name else ())
