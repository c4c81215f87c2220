"""What `explain` says: the reasons for a plan, without a cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from embedserve_operator.commands.render import explain_file, read_cluster
from tests.operator.builders import SETTINGS, hub_spec, resource
from tests.operator.expected import assert_golden
from tests.operator.rendering.case import AUTOSCALED, CONVERTED, GOLDEN, HOPPER

CLUSTER = read_cluster((Path(__file__).parents[1] / "nodes.yaml").read_text(encoding="utf-8"))


def explain(spec: Mapping[str, Any]) -> list[str]:
    """The lines that are said of a spec, without hashes."""
    text = explain_file(yaml.safe_dump(resource(spec)), SETTINGS, CLUSTER)
    return re.sub(r"\b[0-9a-f]{8}\b", "HASH", text).splitlines()


def test_a_service_on_accelerators_is_explained_in_exactly_the_reviewed_words() -> None:
    explained = explain_file(yaml.safe_dump(resource(HOPPER)), SETTINGS, CLUSTER)
    assert_golden(GOLDEN / "explained-hopper.txt", explained)


@pytest.mark.parametrize(
    ("spec", "base", "want"),
    [
        pytest.param(
            hub_spec(hardware={"class": "blackwell-rtx"}),
            HOPPER,
            [
                "hardware class blackwell-rtx: RTX PRO, RTX 50",
                "  a node has architecture amd64 or arm64, compute capability 12.0 or a cloud's label for it, label "
                "kubernetes.io/os=linux",
                "  a label    cloud.google.com/gke-accelerator=nvidia-rtx-pro-6000",
                "  a label    karpenter.k8s.aws/instance-gpu-name=rtx-pro-4500 or rtx-pro-server-6000",
                "  a label    eks.amazonaws.com/instance-gpu-name=rtx-pro-4500 or rtx-pro-server-6000",
                "  a label    node.kubernetes.io/instance-type=g7.2xlarge or g7.4xlarge or g7.8xlarge or g7.12xlarge "
                "or g7.24xlarge or g7.48xlarge or g7e.2xlarge or g7e.4xlarge or g7e.8xlarge or g7e.12xlarge "
                "or g7e.24xlarge or g7e.48xlarge",
                "  a pool without nodes fits if its definition has such a label, or nvidia.com/gpu.compute.major=12 "
                "and nvidia.com/gpu.compute.minor=0, which you can add to it",
                "  nodes that fit: none",
            ],
            id="no node fits a class",
        ),
        pytest.param(
            hub_spec(hardware={"class": "ampere", "resourceName": "nvidia.com/mig-1g.10gb"}),
            hub_spec(hardware={"class": "ampere"}),
            [
                "  a pod has  1 nvidia.com/mig-1g.10gb",
                "  nodes that fit: a100-mig",
                "  nodes with too few accelerators: a100 (0)",
            ],
            id="a slice is on other nodes than whole accelerators",
        ),
        pytest.param(
            AUTOSCALED,
            hub_spec(),
            [
                "  Deployment docs-HASH (as many pods as the autoscaler says, 40 s to stop): the pods of this revision",
                "  HorizontalPodAutoscaler docs-HASH: spec.autoscaling is given",
                "  PodDisruptionBudget docs: two or more pods are asked for; drains take one at a time",
            ],
            id="an autoscaler decides how many pods there are",
        ),
        pytest.param(
            hub_spec(monitoring={"serviceMonitor": {}}),
            hub_spec(),
            ["not made: ServiceMonitor: the cluster has no definition of it"],
            id="a kind that the cluster lacks is not made",
        ),
        pytest.param(
            CONVERTED,
            hub_spec(),
            [
                "cache: claim docs-models, for the pods of one node",
                "  PersistentVolumeClaim docs-models: where models are kept; spec.cache.volume",
                "  NetworkPolicy docs.fetch: who may reach the pods and what they may reach; spec.networkPolicy",
                "  Job docs-fetch-HASH: fills the cache; its name carries the hash of what it works on, and it is run "
                "once",
                "  Job docs-convert-HASH: fills the cache; its name carries the hash of what it works on, and it is "
                "run once",
            ],
            id="a model is fetched and converted on a volume",
        ),
    ],
)
def test_a_setting_is_explained_by_lines_of_its_own(
    spec: Mapping[str, Any], base: Mapping[str, Any], want: list[str]
) -> None:
    usual = explain(base)
    assert [line for line in explain(spec) if line not in usual and not line.startswith("  others:")] == want


def test_what_keeps_nodes_from_fitting_is_said_for_each_kind_of_node() -> None:
    (line_of_others,) = [
        line for line in explain(hub_spec(hardware={"class": "blackwell-rtx"})) if "others:" in line
    ]
    assert line_of_others.startswith(
        "  others: these fit except for a taint or cordon: rtx-pro (taint team=graphics:NoSchedule); the cluster has "
        "1 node (amd64), 1 node (amd64, compute capability 10.0, 1 nvidia.com/gpu), "
    )
    assert line_of_others.endswith(" and 6 more")
