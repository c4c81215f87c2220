"""Hardware classes."""

from __future__ import annotations

from typing import Any

from tests.operator.builders import hub_spec
from tests.operator.rendering.case import (
    ANY_NODE_TERMS,
    BUDGET,
    CONFIG,
    DEPLOYMENT,
    FETCH,
    HOPPER,
    HOPPER_TERMS,
    NODE_TERMS,
    POD,
    RUNTIME,
    Case,
    build_class_terms,
    compare_with_hopper,
)
from tests.support.differences import GONE, find_value_differences

_AMPERE_TERMS = build_class_terms("ampere", "8", "0", "6", "7", architectures=("amd64", "arm64"))


def _narrow_terms(zone: str) -> list[Any]:
    """The terms of class ampere, in one zone."""
    theirs = {"key": "zone", "operator": "In", "values": [zone]}
    return [{"matchExpressions": [theirs, *term["matchExpressions"]]} for term in _AMPERE_TERMS]


CASES = (
    Case(
        "pods of the x86 class ask for its CPUs on its architecture",
        hub_spec(hardware={"class": "cpu-x86"}),
        {
            f"{NODE_TERMS}[0].matchExpressions[kubernetes.io/arch].values[1]": GONE,
            f"{FETCH}.resources.requests.cpu": 2,
            f"{RUNTIME}.resources": {"requests": {"cpu": 2}},
        },
    ),
    Case(
        "pods of the ARM64 class ask for its CPUs on its architecture",
        hub_spec(hardware={"class": "cpu-arm64"}),
        {
            f"{NODE_TERMS}[0].matchExpressions[kubernetes.io/arch].values[0]": "arm64",
            f"{NODE_TERMS}[0].matchExpressions[kubernetes.io/arch].values[1]": GONE,
            f"{FETCH}.resources.requests.cpu": 2,
            f"{RUNTIME}.resources": {"requests": {"cpu": 2}},
        },
    ),
    Case(
        "the user's resources take the place of the class's CPUs",
        hub_spec(
            hardware={"class": "cpu-x86"},
            resources={"requests": {"cpu": 8, "memory": "4Gi"}, "limits": {"memory": "4Gi"}},
        ),
        {
            f"{FETCH}.resources.requests.cpu": 8,
            f"{FETCH}.resources.requests.memory": "4Gi",
            f"{FETCH}.resources.limits.memory": "4Gi",
            f"{RUNTIME}.resources.requests.cpu": 8,
            f"{RUNTIME}.resources.requests.memory": "4Gi",
            f"{RUNTIME}.resources.limits": {"memory": "4Gi"},
        },
        base=hub_spec(hardware={"class": "cpu-x86"}),
    ),
    Case(
        "pods of class hopper go to nodes with its capability or a cloud's label for it, one device each",
        HOPPER,
        {
            f"{CONFIG}.server.http_workers": "auto",
            f"{CONFIG}.engine": {"kind": "torch", "precision": "bfloat16"},
            f"{DEPLOYMENT}.spec.strategy.rollingUpdate.maxSurge": 0,
            f"{DEPLOYMENT}.spec.strategy.rollingUpdate.maxUnavailable": 1,
            **find_value_differences(ANY_NODE_TERMS, HOPPER_TERMS, NODE_TERMS),
            f"{FETCH}.image": "embedserve-runtime:test-cuda",
            f"{FETCH}.resources.limits.memory": "2048Mi",
            f"{FETCH}.resources.requests.memory": "2048Mi",
            f"{POD}.volumes[tmp].emptyDir.sizeLimit": "2304Mi",
            f"{RUNTIME}.image": "embedserve-runtime:test-cuda",
            f"{RUNTIME}.resources": {
                "limits": {"nvidia.com/gpu": 1},
                "requests": {"cpu": 8, "nvidia.com/gpu": 1},
            },
            f"{POD}.tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        },
    ),
    Case(
        "pods of class turing go to their capability and load in its precision",
        hub_spec(hardware={"class": "turing"}),
        {
            f"{CONFIG}.engine.precision": "float16",
            **compare_with_hopper("turing", "7", "5", architectures=("amd64",)),
            f"{RUNTIME}.resources.requests.cpu": 2,
        },
        base=HOPPER,
    ),
    Case(
        "pods of class ampere go to any of their capabilities",
        hub_spec(hardware={"class": "ampere"}),
        {
            **compare_with_hopper("ampere", "8", "0", "6", "7"),
            f"{RUNTIME}.resources.requests.cpu": 3,
        },
        base=HOPPER,
    ),
    Case(
        "pods of class ada go to their capability",
        hub_spec(hardware={"class": "ada"}),
        {
            **compare_with_hopper("ada", "8", "9"),
            f"{RUNTIME}.resources.requests.cpu": 3,
        },
        base=HOPPER,
    ),
    Case(
        "pods of class blackwell go to any of their capabilities",
        hub_spec(hardware={"class": "blackwell"}),
        {
            **compare_with_hopper("blackwell", "10", "0", "3"),
        },
        base=HOPPER,
    ),
    Case(
        "pods of class blackwell-rtx go to their capability",
        hub_spec(hardware={"class": "blackwell-rtx"}),
        {
            **compare_with_hopper("blackwell-rtx", "12", "0"),
            f"{RUNTIME}.resources.requests.cpu": 3,
        },
        base=HOPPER,
    ),
    Case(
        "pods of class dgx-spark go to their capability on ARM64",
        hub_spec(hardware={"class": "dgx-spark"}),
        {
            **compare_with_hopper("dgx-spark", "12", "1", architectures=("arm64",)),
        },
        base=HOPPER,
    ),
    Case(
        "fp8 is used where it is named, down to the floor that is named",
        hub_spec(model={"precision": "fp8", "minCosine": 0.99}, hardware={"class": "hopper"}),
        {f"{CONFIG}.engine.precision": "fp8", f"{CONFIG}.engine.min_cosine": 0.99},
        base=HOPPER,
    ),
    Case(
        "pods with two accelerators ask for the CPUs of two",
        hub_spec(hardware={"class": "hopper", "count": 2}, replicas=2),
        {
            f"{DEPLOYMENT}.spec.replicas": 2,
            f"{RUNTIME}.resources.limits.nvidia.com/gpu": 2,
            f"{RUNTIME}.resources.requests.cpu": 16,
            f"{RUNTIME}.resources.requests.nvidia.com/gpu": 2,
            "PodDisruptionBudget docs": BUDGET,
        },
        base=HOPPER,
    ),
    Case(
        "pods on a slice ask for it by its name, and for no CPUs of a whole accelerator",
        hub_spec(hardware={"class": "ampere", "resourceName": "nvidia.com/mig-1g.10gb"}),
        {
            f"{RUNTIME}.resources.limits.nvidia.com/gpu": GONE,
            f"{RUNTIME}.resources.limits.nvidia.com/mig-1g.10gb": 1,
            f"{RUNTIME}.resources.requests.cpu": GONE,
            f"{RUNTIME}.resources.requests.nvidia.com/gpu": GONE,
            f"{RUNTIME}.resources.requests.nvidia.com/mig-1g.10gb": 1,
        },
        base=hub_spec(hardware={"class": "ampere"}),
    ),
    Case(
        "the user's engine and precision take the place of the class's",
        hub_spec(model={"precision": "float32"}, hardware={"class": "ada"}, engine="torch"),
        {f"{CONFIG}.engine.precision": "float32"},
        base=hub_spec(hardware={"class": "ada"}),
    ),
    Case(
        "each of the user's node terms is narrowed to the class, and his other affinity is kept",
        hub_spec(
            hardware={"class": "ampere"},
            pod={
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [
                                {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
                                {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]},
                            ]
                        }
                    },
                    "podAntiAffinity": {
                        "preferredDuringSchedulingIgnoredDuringExecution": [
                            {
                                "weight": 1,
                                "podAffinityTerm": {
                                    "topologyKey": "kubernetes.io/hostname",
                                    "labelSelector": {"matchLabels": {"noisy": "true"}},
                                },
                            }
                        ]
                    },
                }
            },
        ),
        {
            **find_value_differences(_AMPERE_TERMS, [*_narrow_terms("a"), *_narrow_terms("b")], NODE_TERMS),
            f"{POD}.affinity.podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 1,
                        "podAffinityTerm": {
                            "topologyKey": "kubernetes.io/hostname",
                            "labelSelector": {"matchLabels": {"noisy": "true"}},
                        },
                    }
                ]
            },
        },
        base=hub_spec(hardware={"class": "ampere"}),
    ),
)
