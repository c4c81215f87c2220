"""Decides which pods are asked for the progress of a fetch, and what is published of their
answers.
"""

from __future__ import annotations

from embedserve_operator.api.status import Fetching, FetchStatus
from embedserve_operator.plan.rollout import DesiredRevision
from embedserve_operator.state.observed import ObservedState
from embedserve_operator.state.pods import FetchingPod, FetchProgress

MAX_ASKED_PODS = 8
"""The greatest number of pods that are asked when each of them fetches for itself."""


def find_fetching_pods(
    observed: ObservedState, desired: DesiredRevision, fetch: FetchStatus | None
) -> tuple[FetchingPod, ...]:
    """Return the pods that are fetching what the spec asks for: the pod of a Job, which may be another
    service's, or, without a Job, the pods that are going to serve.
    """
    job = observed.find_job(fetch.job) if fetch is not None else None
    if job is not None:
        return (job.fetching_pod,) if job.fetching_pod is not None else ()
    fetching_pods = [
        pod.fetching_pod
        for pod in observed.list_pods(desired.revision)
        if pod.fetching_pod is not None and pod.template_hash == desired.template_hash
    ]
    return tuple(fetching_pods[:MAX_ASKED_PODS])


def summarize_progress(fetching_pods: tuple[FetchingPod, ...]) -> Fetching | None:
    """Return the progress of the slowest pod; None as long as no pod has answered."""
    reports = [pod.progress for pod in fetching_pods if pod.progress is not None]
    last = min(reports, key=_compute_share, default=None)
    if last is None:
        return None
    return Fetching(
        phase=last.phase,
        bytes_done=last.bytes_done,
        bytes_total=last.bytes_total,
        bytes_per_second=last.bytes_per_second,
        seconds_remaining=last.seconds_remaining,
    )


def _compute_share(progress: FetchProgress) -> float:
    """Return the share of the bytes that has been fetched."""
    return progress.bytes_done / progress.bytes_total if progress.bytes_total else 0.0
