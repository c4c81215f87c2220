"""Settings of the model: the group `model`, and the variables of other programs that say where models come from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qsl

from pydantic import Field, PositiveInt, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from embedserve_runtime.config.base import SettingsGroup
from embedserve_runtime.config.secrets import OptionalHeaderSecret

DEFAULT_STORE = Path("~/.cache/embedserve")


class StoreLocation(BaseSettings):
    """The folder of the model store, for commands that need no other setting."""

    model_config = SettingsConfigDict(env_prefix="EMBEDSERVE_MODEL__", extra="ignore", frozen=True)

    store: Path = DEFAULT_STORE


MIN_SIGNATURE_CHARACTERS = 16
"""Values of a URL's query that are at least so long are secrets; a signature of 16 hex digits would be no signature."""


def _is_hub_offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


class ModelSettings(SettingsGroup):
    """The settings that say which model is served and how its vectors are made."""

    source: str = Field(
        default="",
        description="A local folder (absolute path, or one that exists), a Hub repository (owner/name), the URL of an "
        "archive (https://...), or a prefix of an S3-compatible bucket (s3://bucket/prefix).",
    )
    revision: str = Field(default="main", description="Branch, tag or commit of a Hub repository.")
    commit: str | None = Field(
        default=None,
        pattern=r"^[0-9a-f]{40}$",
        description="Commit that the revision is known to stand for: fetched without asking the Hub what it is now.",
    )
    refresh: str | None = Field(
        default=None,
        description="Any word. What a branch or a prefix stands for is looked up once and kept; another word looks it "
        "up anew.",
    )
    sha256: str | None = Field(
        default=None,
        pattern=r"^[0-9a-f]{64}$",
        description="SHA-256 of the archive, in hex; needed with an https:// source.",
    )
    s3_endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://",
        description="Base URL of an S3-compatible server; by default AWS_ENDPOINT_URL, else AWS itself. Keys come from "
        "AWS_ACCESS_KEY_ID and its companions, or from the pod's role.",
    )
    store: Path = Field(default=DEFAULT_STORE, description="Folder of the content-addressed model store.")
    offline: bool = Field(
        default_factory=_is_hub_offline,
        description="Take models from the store only; by default HF_HUB_OFFLINE decides.",
    )
    token: OptionalHeaderSecret = Field(
        default=None,
        description="Bearer token for the Hub or the https:// source; only ever set through the environment.",
    )
    endpoint: str | None = Field(
        default=None,
        description="Base URL of the Hub; without it HF_ENDPOINT, or the client library's own default, is used.",
    )
    task: Literal["auto", "embed", "rerank", "classify", "sparse"] = Field(
        default="auto", description="What the model gives. `auto` takes what the model folder is for."
    )
    outputs: tuple[Literal["dense", "sparse", "multiVector"], ...] = Field(
        default=(), description="What the model must give; one that gives less is not started."
    )
    pooling: Literal["auto", "cls", "mean", "mean_sqrt", "weighted_mean", "max", "last"] = Field(
        default="auto",
        description="How the vectors of tokens become one vector. `auto` takes what the model folder says.",
    )
    onnx_file: str | None = Field(
        default=None,
        description="ONNX file of the repository that is run instead of its safetensors weights, by its path in "
        "the repository. By default one is taken only where no family fits.",
    )
    export_elsewhere: bool = Field(
        default=False,
        description="Fetch the weights of a model that no family fits although this image cannot export them: "
        "`embedserve convert` is run on the same store by an image that can.",
    )
    max_length: PositiveInt | None = Field(
        default=None,
        description="Tokens an input may have, special tokens included; by default the model's own limit.",
    )
    dimensions: PositiveInt | None = Field(
        default=None, description="Matryoshka cut of every dense vector; by default all dimensions are kept."
    )
    prompts: dict[str, str] = Field(
        default_factory=dict, description="Prompts by name, added to the model's own; the same name replaces."
    )
    default_prompt: str | None = Field(
        default=None,
        description="Name of the prompt used when a request names none; by default the model's own.",
    )

    adapters: tuple[str, ...] = Field(
        default=(),
        max_length=16,
        description="Tasks of a model that has an adapter for each of several: a request names one, and the first is "
        "for requests that name none. Each has weights of its own in memory. Without it the model is what its authors "
        "take where no task is named.",
    )

    @model_validator(mode="after")
    def _source_is_given(self) -> ModelSettings:
        if not self.source:
            raise ValueError(
                "model.source is missing: give a model folder or a Hub repository, on the command line, in the file of "
                "settings or by EMBEDSERVE_MODEL__SOURCE"
            )
        return self

    @model_validator(mode="after")
    def _settings_fit_the_source(self) -> ModelSettings:
        is_archive = self.source.startswith(("https://", "http://"))
        if is_archive and self.sha256 is None:
            raise ValueError(
                f"model.sha256 is missing: {self.source_name} is only taken with the SHA-256 of its content"
            )
        if self.sha256 is not None and not is_archive:
            raise ValueError(f"model.sha256 belongs to an https:// source, and model.source is {self.source}")
        if self.s3_endpoint is not None and not self.source.startswith("s3://"):
            raise ValueError(
                f"model.s3_endpoint belongs to an s3:// source, and model.source is {self.source}"
            )
        return self

    @property
    def source_name(self) -> str:
        """The source as it is shown: a URL without its query, which may carry a signature."""
        return (
            self.source.partition("?")[0] if self.source.startswith(("https://", "http://")) else self.source
        )

    @property
    def url_secrets(self) -> tuple[SecretStr, ...]:
        """The values in the query of a URL that are long enough to be a signature."""
        query = self.source.removeprefix(self.source_name)[1:]
        values = (value for _, value in parse_qsl(query))
        return tuple(SecretStr(value) for value in values if len(value) >= MIN_SIGNATURE_CHARACTERS)

    @property
    def s3_url(self) -> str | None:
        """Base URL of the S3-compatible server; None is AWS itself."""
        read = os.environ.get
        return (
            self.s3_endpoint
            or read("AWS_ENDPOINT_URL_S3")
            or read("AWS_ENDPOINT_URL")
            or read("AWS_ENDPOINT")
        )

    @property
    def s3_public_url(self) -> str | None:
        """Base URL that objects are read from without keys, where AWS_SKIP_SIGNATURE asks for that."""
        if os.environ.get("AWS_SKIP_SIGNATURE", "").lower() != "true":
            return None
        region = os.environ.get("AWS_REGION", "us-east-1")
        return (self.s3_url or f"https://s3.{region}.amazonaws.com").rstrip("/")

    @property
    def certificate_file(self) -> Path | None:
        """Certificates of authorities that are trusted instead of the usual ones."""
        file = os.environ.get("SSL_CERT_FILE")
        return Path(file) if file else None
