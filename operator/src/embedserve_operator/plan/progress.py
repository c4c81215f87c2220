"""How far a fetch is: which pods can say it, and what is published of what they said."""

from __future__ import annotations

from embedserve_operator.api.status import Fetching, FetchStatus
from embedserve_operator.plan.rollout import Wanted
from embedserve_operator.world import Fetcher, FetchProgress, World

MOST_ASKED = 8
"""Of the pods that each fetch for themselves."""


def fetchers(world: World, wanted: Wanted, fetch: FetchStatus | None) -> tuple[Fetcher, ...]:
    """The pods that fetch what the spec asks for now: that of a Job, which may be another service's, or, without one,
    those that are to serve."""
    job = world.job(fetch.job) if fetch is not None else None
    if job is not None:
        return (job.fetcher,) if job.fetcher is not None else ()
    found = [
        pod.fetcher
        for pod in world.pods_of(wanted.revision)
        if pod.fetcher is not None and pod.template == wanted.template
    ]
    return tuple(found[:MOST_ASKED])


def fetching(asked: tuple[Fetcher, ...]) -> Fetching | None:
    """How far the slowest of them is; None while none has said anything."""
    said = [one.progress for one in asked if one.progress is not None]
    last = min(said, key=_share, default=None)
    if last is None:
        return None
    return Fetching(
        phase=last.phase,
        bytes_done=last.bytes_done,
        bytes_total=last.bytes_total,
        bytes_per_second=last.bytes_per_second,
        seconds_remaining=last.seconds_remaining,
    )


def _share(progress: FetchProgress) -> float:
    """Of the bytes that are needed."""
    return progress.bytes_done / progress.bytes_total if progress.bytes_total else 0.0
