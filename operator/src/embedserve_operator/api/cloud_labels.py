"""Labels by which clouds say which accelerators a node has, for each hardware class.

Clouds put them on the definition of a pool, so the autoscaler knows them before the pool has a node. The compute
capability is known only once feature discovery runs on a node.

Sources, read in December 2026:

- GKE: "Deploy GPU workloads in Autopilot" (https://cloud.google.com/kubernetes-engine/docs/how-to/autopilot-gpus) for
  the label, https://cloud.google.com/compute/docs/gpus for the names of the accelerators.
- Karpenter on AWS: the labels of each instance type,
  https://karpenter.sh/docs/reference/instance-types/ (generated; at commit 1d927085). EKS Auto Mode has the same values
  under its own key: https://docs.aws.amazon.com/eks/latest/userguide/ml-node-pools.html.
- Karpenter on Azure (AKS node auto-provisioning): the accelerator in the name of the VM size, `LabelSKUGPUName` in
  https://github.com/Azure/karpenter-provider-azure (commit 352646f5). Sizes whose names do not contain it have no
  such label.
- Cluster Autoscaler on EKS and AKS: the well-known label of the instance type,
  https://kubernetes.io/docs/reference/labels-annotations-taints/#nodekubernetesioinstance-type. Types with a whole
  accelerator from the two repositories above (AKS: pkg/utils/supported-gpus.yaml). AKS itself labels the pool only with
  `kubernetes.azure.com/accelerator=nvidia`, which says nothing about the model.

Values that are missing here, such as those of later machines, can be added with the chart's hardwareClasses.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

GKE = "cloud.google.com/gke-accelerator"
KARPENTER_AWS = "karpenter.k8s.aws/instance-gpu-name"
EKS_AUTO_MODE = "eks.amazonaws.com/instance-gpu-name"
KARPENTER_AZURE = "karpenter.azure.com/sku-gpu-name"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"


def _build_labels(
    *, gke: tuple[str, ...] = (), aws: tuple[str, ...], azure: tuple[str, ...] = (), types: tuple[str, ...]
) -> Mapping[str, tuple[str, ...]]:
    labels = {GKE: gke, KARPENTER_AWS: aws, EKS_AUTO_MODE: aws, KARPENTER_AZURE: azure, INSTANCE_TYPE: types}
    return MappingProxyType({key: values for key, values in labels.items() if values})


def _list_types(family: str, *sizes: str) -> tuple[str, ...]:
    return tuple(f"{family}.{size}" for size in sizes)


def _list_sizes(*names: str) -> tuple[str, ...]:
    return tuple(f"Standard_{name}" for name in names)


_G_SIZES = ("xlarge", "2xlarge", "4xlarge", "8xlarge", "12xlarge", "16xlarge", "24xlarge", "48xlarge")
_G7_SIZES = ("2xlarge", "4xlarge", "8xlarge", "12xlarge", "24xlarge", "48xlarge")

CLOUD_LABELS: Mapping[str, Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "turing": _build_labels(
            gke=("nvidia-tesla-t4",),
            aws=("t4",),
            azure=("T4",),
            types=(
                *_list_types(
                    "g4dn", "xlarge", "2xlarge", "4xlarge", "8xlarge", "12xlarge", "16xlarge", "metal"
                ),
                *_list_sizes("NC4as_T4_v3", "NC8as_T4_v3", "NC16as_T4_v3", "NC64as_T4_v3"),
            ),
        ),
        "ampere": _build_labels(
            gke=("nvidia-tesla-a100", "nvidia-a100-80gb"),
            aws=("a100", "a10g"),
            azure=("A100", "A10"),
            types=(
                *_list_types("g5", *_G_SIZES),
                *_list_types("p4d", "24xlarge"),
                *_list_types("p4de", "24xlarge"),
                *_list_sizes("NC24ads_A100_v4", "NC48ads_A100_v4", "NC96ads_A100_v4"),
                *_list_sizes("ND96asr_v4", "ND96amsr_A100_v4"),
                *_list_sizes("NV36ads_A10_v5", "NV36adms_A10_v5", "NV72ads_A10_v5"),
            ),
        ),
        "ada": _build_labels(
            gke=("nvidia-l4",),
            aws=("l4", "l40s"),
            types=(
                *_list_types("g6", *_G_SIZES),
                *_list_types("gr6", "4xlarge", "8xlarge"),
                *_list_types("g6e", *_G_SIZES),
            ),
        ),
        "hopper": _build_labels(
            gke=("nvidia-h100-80gb", "nvidia-h100-mega-80gb", "nvidia-h200-141gb"),
            aws=("h100", "h200"),
            azure=("H100", "H200"),
            types=(
                *_list_types("p5", "4xlarge", "48xlarge"),
                *_list_types("p5e", "48xlarge"),
                *_list_types("p5en", "48xlarge"),
                *_list_sizes("NC40ads_H100_v5", "NC80adis_H100_v5", "ND96isr_H100_v5", "ND96isr_H200_v5"),
            ),
        ),
        "blackwell": _build_labels(
            gke=("nvidia-b200", "nvidia-gb200"),
            aws=("b200", "b300"),
            types=(
                *_list_types("p6-b200", "48xlarge"),
                *_list_types("p6-b300", "48xlarge"),
                *_list_sizes("ND128isr_NDR_GB200_v6", "ND128isr_GB300_v6"),
            ),
        ),
        "blackwell-rtx": _build_labels(
            gke=("nvidia-rtx-pro-6000",),
            aws=("rtx-pro-4500", "rtx-pro-server-6000"),
            types=(*_list_types("g7", *_G7_SIZES), *_list_types("g7e", *_G7_SIZES)),
        ),
    }
)
"""The label keys of each built-in class, each with the values that stand for accelerators of the class."""
