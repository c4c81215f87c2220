"""Settings of what stands between clients and the engine: `server`, `batching`, `telemetry`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, NonNegativeInt, PositiveInt, model_validator
from pydantic_settings import NoDecode

from embedserve_runtime.config.base import SettingsGroup
from embedserve_runtime.config.secrets import ApiKeySecret, split_secrets

Port = Annotated[int, Field(ge=0, le=65535)]
Origin = Annotated[str, Field(pattern=r"^(\*|null|[A-Za-z][A-Za-z0-9+.-]*://[^/\s]+)$")]
WorkerCount = Annotated[int, Field(ge=1, le=64)]


def _split_keys(value: object) -> object:
    """Split the text of an environment variable into keys."""
    return split_secrets(value) if isinstance(value, str) else value


_SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie"})


def _check_client_header(name: str) -> str:
    """Refuse a header that carries secrets: its value becomes a name in metrics and logs."""
    if name.lower() in _SECRET_HEADERS:
        raise ValueError(
            f"must not be {name}: it carries secrets, and a client's name is in metrics and logs"
        )
    return name


class ServerSettings(SettingsGroup):
    """The settings of the runtime's ports, limits and end."""

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="Address of all ports; `::` is every address of IPv4 and IPv6, 0.0.0.0 every one of IPv4.",
    )
    port: Port = Field(default=8080, description="Serving port; 0 takes a free one and logs it.")
    management_port: Port | None = Field(
        default=None,
        description="Own port for probes and metrics; by default they are on the serving port only.",
    )
    pinned_port: Port | None = Field(
        default=None,
        description="Second serving port, for those who ask for this model's vector space by its own name: never "
        "passed on. By default there is none.",
    )
    space_url: str | None = Field(
        default=None,
        pattern=r"^http://[^/{}]*\{space8\}[^/{}]*$",
        description="Base URL of a vector space's own name, with {space8} for the first 8 digits of its identity. "
        "Requests on the serving port are passed there once the management port is told that the service's name "
        "stands for another space. By default none is passed on.",
    )
    grpc_port: Port | None = Field(
        default=None, description="Port for gRPC; 0 takes a free one and logs it. By default there is none."
    )
    pinned_grpc_port: Port | None = Field(
        default=None,
        description="Second port for gRPC, as `pinned_port` is for HTTP. By default there is none. Needs `grpc_port`.",
    )
    space_grpc: str | None = Field(
        default=None,
        pattern=r"^[^/{}]*\{space8\}[^/{}]*$",
        description="Host and port for gRPC of a vector space's own name, as `space_url` is for HTTP. By default no "
        "call is passed on.",
    )
    served_model_name: str | None = Field(
        default=None, description="The model's name in answers and `/info`; by default model.source."
    )
    api_keys: Annotated[tuple[ApiKeySecret, ...], NoDecode, BeforeValidator(_split_keys)] = Field(
        default=(),
        description="Keys that clients may send as `Authorization: Bearer`; none: no key is asked for. In the "
        "environment several are separated by commas or blanks.",
    )
    openai_token_ids: bool = Field(
        default=False,
        description="Take arrays of token ids on `/v1/embeddings`. Clients send those of OpenAI's own tokenizers "
        "there, which are other words in this model's vocabulary; the other routes take ids in any case.",
    )
    api_keys_file: Path | None = Field(
        default=None,
        description="File with further API keys. They are separated by commas or blanks, or the file is a document "
        "with a name, routes, an end and rates for each (docs/clients.md); it is read again when it changes.",
    )
    operator_keys_file: Path | None = Field(
        default=None,
        description="File with the public keys (a JSON Web Key Set) of the operator that may call `PUT /current` and "
        "`GET /selfcheck` on the management port; it is read again when it changes. Without the file, whoever reaches "
        "the port may call. By default `operator-keys.json` beside the configuration file.",
    )
    client_header: Annotated[str, AfterValidator(_check_client_header)] | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9-]{1,100}$",
        description="Header in which a gateway names the client; clients share the queue fairly, and each has its "
        "rates. A key with a name says it without. Only for a server that is reached through that gateway alone.",
    )
    client_requests_per_minute: PositiveInt | None = Field(
        default=None,
        description="Requests a minute that each client may send to this process; beyond it 429.",
    )
    client_tokens_per_minute: PositiveInt | None = Field(
        default=None, description="Tokens a minute that each client may send to this process; beyond it 429."
    )
    http_workers: WorkerCount | Literal["auto"] = Field(
        default=1,
        description="Processes that parse, tokenize and encode; 1 does it in the engine's own process, `auto` measures "
        "at start how many the engine needs.",
    )
    max_body_bytes: PositiveInt = Field(default=16 * 2**20, description="Largest request body, bytes.")
    max_pending_bytes: PositiveInt = Field(
        default=256 * 2**20,
        description="Bytes of all requests in hand, each counted as 4096 at least; beyond it 429.",
    )
    access_log: bool = Field(
        default=False,
        description="A line in the log for each request: route, status, duration, request id. Requests that fail in "
        "the server (5xx) are logged in any case.",
    )
    cors_origins: tuple[Origin, ...] = Field(
        default=(),
        description="Origins whose pages may call this server from a browser, such as https://app.example; `*` for "
        "all. By default no browser of another origin may.",
    )
    compress_from_bytes: PositiveInt | None = Field(
        default=None,
        description="Answers of so many bytes and more are packed with gzip where the client takes that. By default "
        "never, since packing vectors takes longer than sending them but over slow lines.",
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

    @model_validator(mode="after")
    def _pinned_grpc_port_has_its_first(self) -> ServerSettings:
        if self.pinned_grpc_port is not None and self.grpc_port is None:
            raise ValueError("pinned_grpc_port needs grpc_port, which is not set")
        return self

    @property
    def first_workers(self) -> int:
        """The number of HTTP workers to start with: one where their number is yet to be measured."""
        return 1 if self.http_workers == "auto" else self.http_workers


class BatchingSettings(SettingsGroup):
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
        default=None,
        description="Inputs one request may carry; by default only the bounds of bytes and of the queue hold.",
    )
    max_hidden_bytes: PositiveInt = Field(
        default=64 * 2**20,
        description="Bytes of token-level states that one request may ask for (`/embed_all`); beyond it 422.",
    )
    request_timeout_seconds: float = Field(
        default=300.0, gt=0, description="Longest time a request may wait and run; then 504."
    )
    cache_bytes: NonNegativeInt = Field(
        default=0,
        description="Bytes of a cache of vectors in each HTTP worker, by text and options; 0 keeps none. Equal "
        "inputs that are in flight run once in any case.",
    )
    cache_seconds: float = Field(default=3600.0, gt=0, description="How long a cached vector is kept.")
    auto_truncate: bool = Field(
        default=True, description="Cut over-long inputs when the request does not say."
    )


class TelemetrySettings(SettingsGroup):
    """The settings of tracing."""

    otlp_endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://",
        description="Base URL of an OTLP/HTTP collector for traces. By default the standard "
        "OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT decides; without either there are none.",
    )

    @property
    def has_traces(self) -> bool:
        """OTEL_SDK_DISABLED and OTEL_TRACES_EXPORTER=none switch them off, as every program with the SDK does."""
        read = os.environ.get
        if read("OTEL_SDK_DISABLED", "").lower() == "true" or read("OTEL_TRACES_EXPORTER") == "none":
            return False
        names = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
        return self.otlp_endpoint is not None or any(map(read, names))
