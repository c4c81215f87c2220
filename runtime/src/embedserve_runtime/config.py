"""Every setting of the runtime, in one model: the contract with the operator.

Sources, later wins: defaults, the YAML file (`--config`), environment (`EMBEDSERVE_BATCHING__MAX_BATCH_TOKENS`),
command-line flags. Unknown keys stop the start. No other module reads environment variables.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveInt,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from embedserve_runtime.errors import ConfigError

ApiKey = Annotated[SecretStr, Field(min_length=1)]
Port = Annotated[int, Field(ge=0, le=65535)]
WorkerCount = Annotated[int, Field(ge=1, le=64)]


class _Group(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelSettings(_Group):
    """Which model is served and how its vectors are made."""

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
        description="Base URL of an S3-compatible server; None takes AWS_ENDPOINT_URL, else AWS itself. Keys come from "
        "AWS_ACCESS_KEY_ID and its companions, or from the pod's role.",
    )
    store: Path = Field(
        default=Path("~/.cache/embedserve"), description="Folder of the content-addressed model store."
    )
    offline: bool = Field(
        default=False, description="Take models from the store only; HF_HUB_OFFLINE=1 says the same."
    )
    token: SecretStr | None = Field(
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
        default="auto", description="`auto` takes what the model folder says."
    )
    onnx_file: str | None = Field(
        default=None,
        description="ONNX file of the repository that is run in the place of its safetensors weights, by its path in "
        "the repository; None takes one only where no family fits.",
    )
    max_length: PositiveInt | None = Field(
        default=None,
        description="Tokens an input may have, special tokens included; None takes the model's own.",
    )
    dimensions: PositiveInt | None = Field(
        default=None, description="Matryoshka cut of every dense vector; None keeps all dimensions."
    )
    prompts: dict[str, str] = Field(
        default_factory=dict, description="Prompts by name, added to the model's own; the same name replaces."
    )
    default_prompt: str | None = Field(
        default=None,
        description="Name of the prompt used when a request names none; None takes the model's own.",
    )

    @model_validator(mode="after")
    def _source_is_given(self) -> ModelSettings:
        if not self.source:
            raise ValueError("model.source is missing: give a model folder or a Hub repository")
        return self

    @model_validator(mode="after")
    def _settings_fit_the_source(self) -> ModelSettings:
        is_archive = self.source.startswith(("https://", "http://"))
        if is_archive and self.sha256 is None:
            raise ValueError(
                f"model.sha256 is missing: {self.source} is only taken with the SHA-256 of its content"
            )
        if self.sha256 is not None and not is_archive:
            raise ValueError(f"model.sha256 belongs to an https:// source, and model.source is {self.source}")
        if self.s3_endpoint is not None and not self.source.startswith("s3://"):
            raise ValueError(
                f"model.s3_endpoint belongs to an s3:// source, and model.source is {self.source}"
            )
        return self

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
        """Certificates of authorities that are trusted in the place of the usual ones."""
        file = os.environ.get("SSL_CERT_FILE")
        return Path(file) if file else None

    @property
    def is_offline(self) -> bool:
        return self.offline or os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def _split_keys(value: object) -> object:
    """The text of an environment variable as several keys. An empty one is an empty key, which is refused."""
    return tuple(re.split(r"[,\s]+", value.strip())) if isinstance(value, str) else value


class ServerSettings(_Group):
    """Where the runtime listens and how it stops."""

    host: str = Field(default="127.0.0.1", description="Address of both ports.")
    port: Port = Field(default=8080, description="Serving port; 0 takes a free one and logs it.")
    management_port: Port | None = Field(
        default=None,
        description="Own port for probes and metrics; None serves them on the serving port only.",
    )
    pinned_port: Port | None = Field(
        default=None,
        description="Second serving port, for those who ask for this model's vector space by its own name: never "
        "passed on; None leaves it off.",
    )
    space_url: str | None = Field(
        default=None,
        pattern=r"^http://[^/{}]*\{space8\}[^/{}]*$",
        description="Base URL of a vector space's own name, with {space8} for the first 8 digits of its identity. "
        "Requests on the serving port are passed there once the management port is told that the service's name "
        "stands for another space. None passes none on.",
    )
    grpc_port: Port | None = Field(
        default=None, description="Port for gRPC; None leaves it off, 0 takes a free one and logs it."
    )
    pinned_grpc_port: Port | None = Field(
        default=None,
        description="Second port for gRPC, as `pinned_port` is for HTTP; None leaves it off. Needs `grpc_port`.",
    )
    space_grpc: str | None = Field(
        default=None,
        pattern=r"^[^/{}]*\{space8\}[^/{}]*$",
        description="Host and port for gRPC of a vector space's own name, as `space_url` is for HTTP. None passes no "
        "call on.",
    )
    served_model_name: str | None = Field(
        default=None, description="Name in answers and `/info`; None takes model.source."
    )
    api_keys: Annotated[tuple[ApiKey, ...], NoDecode, BeforeValidator(_split_keys)] = Field(
        default=(),
        description="Keys that clients may send as `Authorization: Bearer`; none: no key is asked for. In the "
        "environment several are separated by commas or blanks.",
    )
    http_workers: WorkerCount | Literal["auto"] = Field(
        default=1,
        description="Processes that parse, tokenise and encode; 1 does it in the engine's own process, `auto` measures "
        "at start how many the engine needs.",
    )
    max_body_bytes: PositiveInt = Field(default=16 * 2**20, description="Largest request body, bytes.")
    max_pending_bytes: PositiveInt = Field(
        default=256 * 2**20,
        description="Bytes of all requests in hand, each counted as 4096 at least; beyond it 429.",
    )
    endpoint_drain_seconds: float = Field(
        default=5.0,
        ge=0,
        description="After SIGTERM: seconds of normal service while load balancers move away.",
    )
    shutdown_grace_seconds: float = Field(
        default=30.0,
        gt=0,
        description="After the drain: seconds that queued work has to finish before it is failed.",
    )

    @property
    def first_workers(self) -> int:
        """Of `http_workers` that it starts with: one where their number is yet to be measured."""
        return 1 if self.http_workers == "auto" else self.http_workers


class BatchingSettings(_Group):
    """Token-budget batching and its bounds."""

    max_batch_tokens: PositiveInt | Literal["auto"] = Field(
        default="auto",
        description="Tokens of one forward; `auto` measures and takes the smallest that reaches 95 % of peak rate.",
    )
    max_queue_tokens: PositiveInt = Field(
        default=1_000_000, description="Tokens that may wait; beyond it 429."
    )
    max_queue_inputs: PositiveInt = Field(default=20_000, description="Inputs that may wait; beyond it 429.")
    max_client_batch_size: PositiveInt | None = Field(
        default=None, description="Inputs one request may carry; None leaves only the byte and queue bounds."
    )
    max_hidden_bytes: PositiveInt = Field(
        default=64 * 2**20,
        description="Bytes of token-level states that one request may ask for (`/embed_all`); beyond it 422.",
    )
    request_timeout_seconds: float = Field(
        default=300.0, gt=0, description="Longest time a request may wait and run; then 504."
    )
    auto_truncate: bool = Field(
        default=True, description="Cut over-long inputs when the request does not say."
    )


class EngineSettings(_Group):
    """How the forward pass runs."""

    kind: Literal["auto", "onnx", "torch", "static"] = Field(
        default="auto",
        description="`auto` takes onnx where it can run the model, else torch if that is installed; static for "
        "tables of token vectors, which neither of the two runs.",
    )
    precision: Literal["auto", "float32", "bfloat16", "float16", "fp8", "int8"] = Field(
        default="auto",
        description="Of weights and products. `auto`: on a CPU the fastest published variant of a converted artifact, "
        "float32 without one; 16 bit on a GPU. onnx runs float32, and int8 out of an artifact. fp8 and int8 on a GPU: "
        "products in 8 bit, if the vectors stay close enough to those in 16 bit.",
    )
    attention: Literal["auto", "fused", "varlen", "grouped"] = Field(
        default="auto",
        description="Attention of the torch engine; `auto` takes the fastest that can run the model.",
    )
    devices: PositiveInt | Literal["auto"] = Field(
        default="auto",
        description="GPUs, each with an engine of its own behind one queue; `auto` takes all that the process sees.",
    )
    threads: PositiveInt | None = Field(
        default=None, description="Compute threads; None takes the container's CPU quota, rounded up."
    )
    one_node: bool = Field(
        default=True,
        description="On a machine with several NUMA nodes, stay on the CPUs of one if the quota, or the compute "
        "threads that are set, fit on it. Not with the torch engine.",
    )


ConvertedPrecision = Literal["float32", "float16", "int8"]
Share = Annotated[float, Field(ge=-1, le=1)]


class ParitySettings(_Group):
    """What a converted variant must reach against the plain float32 graph to be published."""

    min_mean_cosine: Share = Field(
        default=0.998, description="Least mean cosine of its vectors to float32's, over the corpus."
    )
    min_cosine: Share = Field(default=0.99, description="Least cosine of any of its vectors to float32's.")
    min_rank_agreement: Share = Field(
        default=0.99,
        description="Least rank correlation (Spearman) of its scores with float32's: similarities of pairs of texts, "
        "or what a reranker or classifier gives.",
    )


class OnnxSettings(_Group):
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


class TelemetrySettings(_Group):
    """What the runtime says about itself beside logs and metrics."""

    otlp_endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://",
        description="Base URL of an OTLP/HTTP collector for traces. None: the standard OTEL_EXPORTER_OTLP_ENDPOINT "
        "or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT decides; without either there are no traces.",
    )

    @property
    def has_traces(self) -> bool:
        """OTEL_SDK_DISABLED and OTEL_TRACES_EXPORTER=none switch them off, as every program with the SDK does."""
        read = os.environ.get
        if read("OTEL_SDK_DISABLED", "").lower() == "true" or read("OTEL_TRACES_EXPORTER") == "none":
            return False
        names = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
        return self.otlp_endpoint is not None or any(map(read, names))


class RuntimeConfig(BaseSettings):
    """All settings, frozen after start."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        # `load_config` makes the validator, of a class of its own.
        defer_build=True,
        env_prefix="EMBEDSERVE_",
        env_nested_delimiter="__",
        nested_model_default_partial_update=True,
    )

    model: ModelSettings
    server: ServerSettings = ServerSettings()
    batching: BatchingSettings = BatchingSettings()
    engine: EngineSettings = EngineSettings()
    onnx: OnnxSettings = OnnxSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least level logged."
    )
    termination_log: Path = Field(
        default=Path("/dev/termination-log"),
        description="File that gets the reason as JSON when the start fails; written only if it exists.",
    )


def load_config(file: Path | None = None, flags: Mapping[str, Any] | None = None) -> RuntimeConfig:
    """Read the configuration; `flags` is a nested mapping that wins over environment and file.

    Raises ConfigError with every problem and its field path.
    """

    class Loader(RuntimeConfig):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, init_kwargs=content)

    content = _read_file(file) if file else {}
    try:
        loaded = Loader(**dict(flags or {}))
    except (ValidationError, SettingsError) as error:
        raise ConfigError(f"configuration{f' {file}' if file else ''}: {_problems(error)}") from error
    return RuntimeConfig.model_construct(
        **{name: getattr(loaded, name) for name in RuntimeConfig.model_fields}
    )


def _read_file(file: Path) -> dict[str, Any]:
    # Imported here, for who has such a file.
    import yaml

    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {file}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{file} must hold a mapping of settings, found a {type(content).__name__}")
    return content


def _problems(error: ValidationError | SettingsError) -> str:
    """Every problem with its field path; input values are left out, since one of them may be a secret."""
    if isinstance(error, SettingsError):
        return str(error)
    return "; ".join(
        f"{'.'.join(str(part) for part in problem['loc']) or 'settings'}: {problem['msg']}"
        for problem in error.errors(include_url=False, include_input=False, include_context=False)
    )
