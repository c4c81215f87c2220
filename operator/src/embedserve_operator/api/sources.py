"""`spec.model.source`: where a model comes from."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from embedserve_operator.api.base import Model, ObjectName
from embedserve_operator.api.rules import Rule, exactly_one, matches


class SecretKeyRef(Model):
    """One key of a Secret in the namespace of the resource."""

    name: ObjectName
    """Name of the Secret."""
    key: Annotated[
        str,
        Field(max_length=253),
        matches(r"^[-._a-zA-Z0-9]+$", "must be a key of the Secret: letters, digits, '-', '_' and '.'"),
    ]
    """Key inside the Secret."""


BaseUrl = Annotated[
    str,
    Field(max_length=1000),
    matches(
        r"^https?://[^/ ?#@]+(/[^ ?#]*)?$",
        "must be a base URL such as https://hub.example, without a password",
    ),
]


class HuggingFaceSource(Model):
    """A repository of the Hugging Face Hub, or of a server that speaks its protocol."""

    repo: Annotated[
        str,
        Field(max_length=200),
        matches(
            r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$",
            "repo must be OWNER/NAME as on the Hub, for example sentence-transformers/all-MiniLM-L6-v2",
        ),
    ]
    """Repository as OWNER/NAME, for example sentence-transformers/all-MiniLM-L6-v2."""
    revision: Annotated[
        str,
        Field(max_length=200),
        matches(
            r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", "revision must be a commit, a tag or a branch, such as main"
        ),
    ] = "main"
    """Commit, tag or branch. A commit keeps the vectors the same for ever; what a branch stands for is looked up once
    and kept, until `model.refresh` changes."""
    token_secret_ref: SecretKeyRef | None = None
    """Access token for private and gated repositories. Only the pods read it, the operator never does."""
    endpoint: BaseUrl | None = None
    """Base URL of the Hub or of a mirror, instead of that of the chart's values."""


class HttpSource(Model):
    """An archive of the model folder (.tar, .tar.gz, .tar.zst, .tar.xz or .zip) that a web server has."""

    url: Annotated[
        str,
        Field(max_length=2000),
        matches(
            r"^https?://[^/ ?#@]+/[^ ]+$",
            "must be the URL of an archive, without a password: https://host/model.tar.gz",
        ),
    ]
    """URL of the archive."""
    sha256: Annotated[
        str,
        Field(max_length=64),
        matches(
            r"^[0-9a-f]{64}$", "must be the archive's SHA-256: 64 lower-case hex digits, as sha256sum prints"
        ),
    ]
    """SHA-256 of the archive; anything else that arrives is refused."""
    token_secret_ref: SecretKeyRef | None = None
    """Bearer token for the web server. Only the pods read it, the operator never does."""


class SecretNameRef(Model):
    """A Secret in the namespace of the resource."""

    name: ObjectName
    """Name of the Secret."""


S3_REQUIRED_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
S3_OPTIONAL_VARIABLES = ("AWS_SESSION_TOKEN", "AWS_REGION")
S3_VARIABLES = (*S3_REQUIRED_VARIABLES, *S3_OPTIONAL_VARIABLES)
"""The environment variables of an S3 client, which are the keys of its Secret."""


class S3Source(Model):
    """The objects under a prefix of a bucket, on AWS or any S3-compatible server."""

    uri: Annotated[
        str,
        Field(max_length=1200),
        matches(
            r"^s3://[a-z0-9][a-z0-9.-]*[a-z0-9]/[^ ]+$", "must be s3://BUCKET/PREFIX, the prefix of one model"
        ),
    ]
    """Bucket and prefix: s3://BUCKET/PREFIX."""
    endpoint: BaseUrl | None = None
    """Base URL of the S3-compatible server; without it AWS."""
    secret_ref: SecretNameRef | None = None
    """Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and AWS_SESSION_TOKEN and AWS_REGION where they are
    needed. Without it the pods' ServiceAccount has to allow it. Only the pods read it, the operator never does."""


ModelPath = Annotated[
    str,
    Field(max_length=1024),
    Rule(
        cel="!self.startsWith('/') && !self.split('/').exists(part, part == '..')",
        message="path must be relative to the volume's root and must not contain '..'",
        check=lambda v: not v.startswith("/") and ".." not in v.split("/"),
    ),
]


class VolumeSource(Model):
    """A model folder on a PersistentVolumeClaim, mounted read-only."""

    claim_name: ObjectName
    """Name of a PersistentVolumeClaim in the namespace of the resource."""
    path: ModelPath = ""
    """Folder inside the volume, relative to its root; empty for the root itself."""


class ImageSource(Model):
    """A model folder inside an OCI image, mounted read-only by the kubelet (an image volume).

    Needs Kubernetes 1.33 or newer and a container runtime that can do it.
    """

    reference: Annotated[
        str,
        Field(max_length=1000),
        matches(r"^[^ ]+[:@][^ /]+$", "reference must name an image with a tag or digest, and no blanks"),
    ]
    """Image with tag or digest; a digest keeps the vectors the same for ever."""
    path: ModelPath = ""
    """Folder inside the image, relative to its root; empty for the root itself."""


class ModelSource(Model):
    """Source of the model: exactly one of the fields."""

    rules: ClassVar[tuple[Rule, ...]] = (
        exactly_one(
            ("huggingFace", "http", "s3", "volume", "image"),
            ("hugging_face", "http", "s3", "volume", "image"),
            "give exactly one source: one of huggingFace, http, s3, volume and image; remove the others",
        ),
    )

    hugging_face: HuggingFaceSource | None = None
    """A repository of the Hugging Face Hub."""
    http: HttpSource | None = None
    """An archive that a web server has."""
    s3: S3Source | None = None
    """A prefix of a bucket."""
    volume: VolumeSource | None = None
    """A folder on a PersistentVolumeClaim."""
    image: ImageSource | None = None
    """A folder inside an OCI image."""

    @property
    def is_remote(self) -> bool:
        """It has to be fetched over the network."""
        return self.volume is None and self.image is None
