"""Volumes of models."""

from __future__ import annotations

from tests.operator.builders import hub_spec
from tests.operator.rendering.case import (
    ANY_NODE_TERMS,
    BUDGET,
    CONFIG,
    CONVERT_CONFIG,
    CONVERT_JOB_POD,
    CONVERTED,
    DEPLOYMENT,
    FETCH_CONFIG,
    FETCH_JOB_NODE_TERMS,
    FETCH_JOB_POD,
    HOPPER_TERMS,
    NODE_TERMS,
    POD,
    POLICY,
    RUNTIME,
    Case,
)
from tests.support.differences import GONE, find_value_differences

CASES = (
    Case(
        "a claim has the user's storage class, and there is no conversion unasked",
        hub_spec(cache={"volume": {"storageClassName": "fast", "size": "20Gi"}}, replicas=2),
        {
            "PersistentVolumeClaim docs-models.spec.storageClassName": "fast",
            f"{FETCH_CONFIG}.model.export_elsewhere": GONE,
            "ConfigMap of Job convert": GONE,
            f"{CONFIG}.onnx.convert": "Never",
            f"{CONFIG}.onnx.precision": GONE,
            f"{CONFIG}.onnx.parity": GONE,
            f"{DEPLOYMENT}.spec.replicas": 2,
            "Job convert": GONE,
        },
        base=CONVERTED,
    ),
    Case(
        "pods with a volume for many nodes spread, and a claim can go with its service",
        hub_spec(
            cache={"volume": {"size": "20Gi", "accessModes": ["ReadWriteMany"], "whenDeleted": "Delete"}},
            replicas=2,
        ),
        {
            "PersistentVolumeClaim docs-models.metadata.ownerReferences": [
                {
                    "apiVersion": "embedserve.dev/v1alpha1",
                    "kind": "EmbeddingService",
                    "name": "docs",
                    "uid": "HASH-0000-0000-0000-000000000000",
                    "controller": True,
                }
            ],
            "PersistentVolumeClaim docs-models.spec.accessModes[0]": "ReadWriteMany",
            "PersistentVolumeClaim docs-models.spec.storageClassName": GONE,
            f"{POD}.affinity.podAffinity": GONE,
            f"{FETCH_JOB_POD}.affinity.podAffinity": GONE,
            "PodDisruptionBudget docs": BUDGET,
        },
        base=hub_spec(cache={"volume": {"storageClassName": "fast", "size": "20Gi"}}, replicas=2),
    ),
    Case(
        "a claim that the user names is used and not made",
        hub_spec(cache={"claimName": "models"}),
        {
            "PersistentVolumeClaim docs-models": GONE,
            f"{DEPLOYMENT}.spec.replicas": 1,
            f"{POD}.volumes[models].persistentVolumeClaim.claimName": "models",
            "Job fetch.metadata.name": "models-fetch-HASH",
            f"{FETCH_JOB_POD}.volumes[models].persistentVolumeClaim.claimName": "models",
        },
        base=hub_spec(cache={"volume": {"storageClassName": "fast", "size": "20Gi"}}, replicas=2),
    ),
    Case(
        "a filled volume is never written, and pods look for their model before they start",
        hub_spec(cache={"claimName": "models", "readOnly": True}),
        {
            "NetworkPolicy docs.fetch": GONE,
            "ConfigMap of Job fetch": GONE,
            f"{POLICY}.podSelector.matchExpressions": GONE,
            f"{POD}.securityContext.fsGroup": GONE,
            f"{POD}.securityContext.fsGroupChangePolicy": GONE,
            f"{POD}.volumes[models].persistentVolumeClaim.readOnly": True,
            f"{POD}.initContainers": [
                {
                    "name": "fetch",
                    "image": "embedserve-runtime:test-cpu",
                    "imagePullPolicy": "IfNotPresent",
                    "args": ["fetch", "--config", "/etc/embedserve/runtime.yaml"],
                    "env": [{"name": "HOME", "value": "/tmp"}],
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "terminationMessagePath": "/dev/termination-log",
                    "terminationMessagePolicy": "File",
                    "volumeMounts": [
                        {"name": "config", "mountPath": "/etc/embedserve", "readOnly": True},
                        {"name": "models", "mountPath": "/models", "readOnly": True},
                        {"name": "tmp", "mountPath": "/tmp"},
                    ],
                    "resources": {"limits": {"memory": "512Mi"}, "requests": {"memory": "512Mi"}},
                }
            ],
            "Job fetch": GONE,
        },
        base=hub_spec(cache={"claimName": "models"}),
    ),
    Case(
        "compiled kernels are kept on the volume of pods with an accelerator",
        hub_spec(hardware={"class": "hopper"}, cache={"volume": {"size": "20Gi"}}),
        {
            f"{FETCH_CONFIG}.model.export_elsewhere": GONE,
            "ConfigMap of Job convert": GONE,
            f"{CONFIG}.server.http_workers": "auto",
            f"{CONFIG}.onnx.convert": "Never",
            f"{CONFIG}.onnx.precision": GONE,
            f"{CONFIG}.onnx.parity": GONE,
            f"{CONFIG}.engine": {"kind": "torch", "precision": "bfloat16"},
            f"{DEPLOYMENT}.spec.strategy.rollingUpdate.maxSurge": 0,
            f"{DEPLOYMENT}.spec.strategy.rollingUpdate.maxUnavailable": 1,
            **find_value_differences(ANY_NODE_TERMS, HOPPER_TERMS, NODE_TERMS),
            f"{RUNTIME}.image": "embedserve-runtime:test-cuda",
            f"{RUNTIME}.volumeMounts[/models/kernels]": {
                "name": "models",
                "mountPath": "/models/kernels",
                "subPath": "kernels",
            },
            f"{RUNTIME}.resources": {
                "limits": {"ephemeral-storage": "2432Mi", "nvidia.com/gpu": 1},
                "requests": {"cpu": 8, "ephemeral-storage": "2432Mi", "nvidia.com/gpu": 1},
            },
            f"{POD}.volumes[tmp].emptyDir.sizeLimit": "2304Mi",
            f"{POD}.tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            **find_value_differences(ANY_NODE_TERMS, HOPPER_TERMS, FETCH_JOB_NODE_TERMS),
            f"{FETCH_JOB_POD}.containers[fetch].image": "embedserve-runtime:test-cuda",
            f"{FETCH_JOB_POD}.containers[fetch].resources.limits.memory": "2048Mi",
            f"{FETCH_JOB_POD}.containers[fetch].resources.requests.memory": "2048Mi",
            f"{FETCH_JOB_POD}.tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "Job convert": GONE,
        },
        base=CONVERTED,
    ),
    Case(
        "a conversion can give outputs for other programs",
        hub_spec(
            onnx={"outputs": ["last_hidden_state", "sentence_embedding"]}, cache={"volume": {"size": "20Gi"}}
        ),
        {
            f"{CONVERT_CONFIG}.onnx.precision": GONE,
            f"{CONVERT_CONFIG}.onnx.parity": GONE,
            f"{CONVERT_CONFIG}.onnx.outputs": ["last_hidden_state", "sentence_embedding"],
            f"{CONFIG}.onnx.precision": GONE,
            f"{CONFIG}.onnx.parity": GONE,
            f"{CONFIG}.onnx.outputs": ["last_hidden_state", "sentence_embedding"],
        },
        base=CONVERTED,
    ),
    Case(
        "models are converted on a named claim as well",
        hub_spec(onnx={}, cache={"claimName": "models"}),
        {
            "PersistentVolumeClaim docs-models": GONE,
            f"{CONVERT_CONFIG}.onnx.precision": GONE,
            f"{CONVERT_CONFIG}.onnx.parity": GONE,
            f"{CONFIG}.onnx.precision": GONE,
            f"{CONFIG}.onnx.parity": GONE,
            f"{POD}.volumes[models].persistentVolumeClaim.claimName": "models",
            "Job fetch.metadata.name": "models-fetch-HASH",
            f"{FETCH_JOB_POD}.volumes[models].persistentVolumeClaim.claimName": "models",
            "Job convert.metadata.name": "models-convert-HASH",
            f"{CONVERT_JOB_POD}.volumes[models].persistentVolumeClaim.claimName": "models",
        },
        base=CONVERTED,
    ),
    Case(
        "a model on a volume is copied to the claim",
        {
            "model": {"source": {"volume": {"claimName": "encoders", "path": "minilm"}}},
            "onnx": {},
            "cache": {"claimName": "models"},
        },
        {
            "NetworkPolicy docs.fetch.spec.egress[0]": GONE,
            "NetworkPolicy docs.fetch.spec.egress[1]": GONE,
            f"{FETCH_CONFIG}.model.source": "/volume/minilm",
            f"{FETCH_CONFIG}.model.revision": GONE,
            f"{FETCH_CONFIG}.model.endpoint": GONE,
            f"{CONVERT_CONFIG}.model.source": "/volume/minilm",
            f"{CONVERT_CONFIG}.model.revision": GONE,
            f"{CONVERT_CONFIG}.model.endpoint": GONE,
            f"{CONFIG}.model.source": "/volume/minilm",
            f"{CONFIG}.model.revision": GONE,
            f"{CONFIG}.model.endpoint": GONE,
            f"{CONFIG}.server.served_model_name": "encoders:/minilm",
            f"{RUNTIME}.volumeMounts[/volume]": {"name": "source", "mountPath": "/volume", "readOnly": True},
            f"{POD}.volumes[source]": {
                "name": "source",
                "persistentVolumeClaim": {"claimName": "encoders", "readOnly": True},
            },
            f"{FETCH_JOB_POD}.containers[fetch].env[EMBEDSERVE_MODEL__COMMIT]": GONE,
            f"{FETCH_JOB_POD}.containers[fetch].volumeMounts[/volume]": {
                "name": "source",
                "mountPath": "/volume",
                "readOnly": True,
            },
            f"{FETCH_JOB_POD}.volumes[source]": {
                "name": "source",
                "persistentVolumeClaim": {"claimName": "encoders", "readOnly": True},
            },
            f"{CONVERT_JOB_POD}.containers[convert].volumeMounts[/volume]": {
                "name": "source",
                "mountPath": "/volume",
                "readOnly": True,
            },
            f"{CONVERT_JOB_POD}.volumes[source]": {
                "name": "source",
                "persistentVolumeClaim": {"claimName": "encoders", "readOnly": True},
            },
        },
        base=hub_spec(onnx={}, cache={"claimName": "models"}),
    ),
)
