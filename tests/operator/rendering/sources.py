"""Where a model comes from, and how it runs."""

from __future__ import annotations

from tests.operator.builders import REPO, hub_spec
from tests.operator.rendering.case import CONFIG, FETCH, POD, POLICY, RUNTIME, Case
from tests.support.differences import GONE

CASES = (
    Case(
        "an archive comes from its URL with its checksum and its token, and only its port is open",
        {
            "model": {
                "source": {
                    "http": {
                        "url": "https://models.example:8443/minilm.tar.gz",
                        "sha256": "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
                        "tokenSecretRef": {"name": "web", "key": "token"},
                    }
                }
            }
        },
        {
            f"{CONFIG}.model.source": "https://models.example:8443/minilm.tar.gz",
            f"{CONFIG}.model.revision": GONE,
            f"{CONFIG}.model.endpoint": GONE,
            f"{CONFIG}.model.sha256": "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            f"{CONFIG}.server.served_model_name": "https://models.example:8443/minilm.tar.gz",
            f"{POLICY}.egress[2].ports[0].port": 8443,
            f"{FETCH}.env[EMBEDSERVE_MODEL__COMMIT]": GONE,
            f"{FETCH}.env[EMBEDSERVE_MODEL__TOKEN]": {
                "name": "EMBEDSERVE_MODEL__TOKEN",
                "valueFrom": {"secretKeyRef": {"name": "web", "key": "token"}},
            },
        },
    ),
    Case(
        "S3 is read with the keys of a Secret, which may lack a session token and a region",
        {
            "model": {
                "source": {
                    "s3": {
                        "uri": "s3://models/minilm",
                        "endpoint": "http://minio.storage.svc:9000",
                        "secretRef": {"name": "minio"},
                    }
                },
                "refresh": "2026-11-28",
            }
        },
        {
            f"{CONFIG}.model.source": "s3://models/minilm",
            f"{CONFIG}.model.revision": GONE,
            f"{CONFIG}.model.endpoint": GONE,
            f"{CONFIG}.model.refresh": "2026-11-28",
            f"{CONFIG}.model.s3_endpoint": "http://minio.storage.svc:9000",
            f"{CONFIG}.server.served_model_name": "s3://models/minilm",
            f"{POLICY}.egress[2].ports[0].port": 9000,
            f"{POLICY}.egress[3]": {
                "to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "storage"}}}]
            },
            f"{FETCH}.env[EMBEDSERVE_MODEL__COMMIT]": GONE,
            f"{FETCH}.env[AWS_ACCESS_KEY_ID]": {
                "name": "AWS_ACCESS_KEY_ID",
                "valueFrom": {"secretKeyRef": {"name": "minio", "key": "AWS_ACCESS_KEY_ID"}},
            },
            f"{FETCH}.env[AWS_SECRET_ACCESS_KEY]": {
                "name": "AWS_SECRET_ACCESS_KEY",
                "valueFrom": {"secretKeyRef": {"name": "minio", "key": "AWS_SECRET_ACCESS_KEY"}},
            },
            f"{FETCH}.env[AWS_SESSION_TOKEN]": {
                "name": "AWS_SESSION_TOKEN",
                "valueFrom": {
                    "secretKeyRef": {"name": "minio", "key": "AWS_SESSION_TOKEN", "optional": True}
                },
            },
            f"{FETCH}.env[AWS_REGION]": {
                "name": "AWS_REGION",
                "valueFrom": {"secretKeyRef": {"name": "minio", "key": "AWS_REGION", "optional": True}},
            },
        },
    ),
    Case(
        "a mirror takes the place of the hub, and a file of the repository is the ONNX model",
        {
            "model": {
                "source": {"huggingFace": {"repo": REPO, "endpoint": "https://mirror.example"}},
                "onnxFile": "onnx/model.onnx",
            }
        },
        {
            f"{CONFIG}.model.endpoint": "https://mirror.example",
            f"{CONFIG}.model.onnx_file": "onnx/model.onnx",
            f"{POLICY}.egress[2].ports[0].port": 443,
        },
    ),
    Case(
        "a folder of a volume is mounted read-only, and nothing is fetched over the network",
        {"model": {"source": {"volume": {"claimName": "models", "path": "encoders/minilm/"}}}},
        {
            f"{CONFIG}.model.source": "/volume/encoders/minilm",
            f"{CONFIG}.model.revision": GONE,
            f"{CONFIG}.model.endpoint": GONE,
            f"{CONFIG}.server.served_model_name": "models:/encoders/minilm",
            f"{POLICY}.egress[2]": GONE,
            f"{FETCH}.env[EMBEDSERVE_MODEL__COMMIT]": GONE,
            f"{POD}.volumes[models].emptyDir.sizeLimit": "256Mi",
            f"{FETCH}.volumeMounts[/volume]": {"name": "source", "mountPath": "/volume", "readOnly": True},
            f"{RUNTIME}.volumeMounts[/volume]": {"name": "source", "mountPath": "/volume", "readOnly": True},
            f"{POD}.volumes[source]": {
                "name": "source",
                "persistentVolumeClaim": {"claimName": "models", "readOnly": True},
            },
        },
    ),
    Case(
        "a whole volume can be the model",
        {"model": {"source": {"volume": {"claimName": "models"}}}},
        {
            f"{CONFIG}.model.source": "/volume",
            f"{CONFIG}.model.revision": GONE,
            f"{CONFIG}.model.endpoint": GONE,
            f"{CONFIG}.server.served_model_name": "models:/",
            f"{POLICY}.egress[2]": GONE,
            f"{FETCH}.env[EMBEDSERVE_MODEL__COMMIT]": GONE,
            f"{POD}.volumes[models].emptyDir.sizeLimit": "256Mi",
            f"{FETCH}.volumeMounts[/volume]": {"name": "source", "mountPath": "/volume", "readOnly": True},
            f"{RUNTIME}.volumeMounts[/volume]": {"name": "source", "mountPath": "/volume", "readOnly": True},
            f"{POD}.volumes[source]": {
                "name": "source",
                "persistentVolumeClaim": {"claimName": "models", "readOnly": True},
            },
        },
    ),
    Case(
        "an image is mounted read-only, and nothing is fetched over the network",
        {
            "model": {
                "source": {
                    "image": {
                        "reference": "registry.example/models/minilm@sha256:0123",
                        "path": "encoders/minilm",
                    }
                }
            }
        },
        {
            f"{CONFIG}.model.source": "/volume/encoders/minilm",
            f"{CONFIG}.model.revision": GONE,
            f"{CONFIG}.model.endpoint": GONE,
            f"{CONFIG}.server.served_model_name": "registry.example/models/minilm@sha256:0123:/encoders/minilm",
            f"{POLICY}.egress[2]": GONE,
            f"{FETCH}.env[EMBEDSERVE_MODEL__COMMIT]": GONE,
            f"{POD}.volumes[models].emptyDir.sizeLimit": "256Mi",
            f"{FETCH}.volumeMounts[/volume]": {"name": "source", "mountPath": "/volume", "readOnly": True},
            f"{RUNTIME}.volumeMounts[/volume]": {"name": "source", "mountPath": "/volume", "readOnly": True},
            f"{POD}.volumes[source]": {
                "name": "source",
                "image": {"reference": "registry.example/models/minilm@sha256:0123"},
            },
        },
    ),
    Case(
        "the runtime gets the pooling",
        hub_spec(model={"pooling": "weighted_mean"}),
        {f"{CONFIG}.model.pooling": "weighted_mean"},
    ),
    Case("the runtime gets the task", hub_spec(model={"task": "rerank"}), {f"{CONFIG}.model.task": "rerank"}),
    Case(
        "the runtime gets the engine and the precision",
        hub_spec(model={"precision": "float32"}, engine="onnx"),
        {f"{CONFIG}.engine": {"kind": "onnx", "precision": "float32"}},
    ),
    Case(
        "the runtime is told not to truncate",
        hub_spec(batching={"autoTruncate": False}),
        {f"{CONFIG}.batching": {"auto_truncate": False}},
    ),
    Case(
        "pods that serve long requests get longer to stop, up to a bound",
        hub_spec(batching={"requestTimeoutSeconds": 1200}),
        {
            f"{CONFIG}.server.shutdown_grace_seconds": 300,
            f"{CONFIG}.batching": {"request_timeout_seconds": 1200},
            f"{POD}.terminationGracePeriodSeconds": 310,
        },
    ),
)
