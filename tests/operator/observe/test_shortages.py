"""What to ask for after a container or a pod was ended for want of memory or storage."""

from __future__ import annotations

import pytest

from embedserve_operator.observe.shortages import advise_after_eviction

LOW = (
    "The node was low on resource: {resource}. Threshold quantity: 100Mi, available: 52Mi. Container runtime was using "
    "{used}, request is 0, has larger consumption of {resource}. "
)


@pytest.mark.parametrize(
    ("message", "want"),
    [
        (
            LOW.format(resource="memory", used="1048576Ki"),
            "; set spec.resources.requests.memory to 1536Mi or more",
        ),
        (
            LOW.format(resource="ephemeral-storage", used="5Gi")
            + "Container istio-proxy was using 12Mi, request is 0, has larger consumption of ephemeral-storage. ",
            "; set spec.resources.requests.ephemeral-storage to 7680Mi or more",
        ),
        (
            "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ",
            "; set spec.resources.limits.ephemeral-storage to 1536Mi or more",
        ),
        (
            'Container runtime exceeded its local ephemeral storage limit "2Gi". ',
            "; set spec.resources.limits.ephemeral-storage to 3072Mi or more",
        ),
        (
            'Usage of EmptyDir volume "tmp" exceeds the limit "448Mi". ',
            "; set spec.resources.limits.ephemeral-storage to 1088Mi or more",
        ),
        ('Usage of EmptyDir volume "scratch" exceeds the limit "1Gi". ', ""),
        ("The node was low on resource: pids. ", ""),
        ("The node was low on memory", ""),
        ("Pod was terminated in response to imminent node shutdown.", ""),
    ],
)
def test_an_eviction_names_what_to_set(message: str, want: str) -> None:
    assert advise_after_eviction(message, "704Mi") == want


def test_a_full_volume_of_a_pod_without_a_limit_names_none() -> None:
    assert advise_after_eviction('Usage of EmptyDir volume "tmp" exceeds the limit "448Mi". ', None) == ""
