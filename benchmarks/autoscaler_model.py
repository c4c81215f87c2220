"""An autoscaler and the pods that it changes, second by second: the algorithm of Kubernetes as documented.

What it leaves out, and what it is used for, is in `benchmarks.scaling`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean

import numpy as np
from numpy.typing import NDArray

from embedserve_operator.kube.objects import Manifest
from embedserve_operator.manifests.autoscaler import BEHAVIOR

RATE = 140.0
"""Inputs a second of one pod: MiniLM on two cores, texts of 50 tokens at 7 k tokens/s (benchmarks/packing.py)."""
BATCH_SECONDS = 0.005
"""Cost of a batch beside its inputs: what one short text takes alone."""
QUEUE_LIMIT = 4096.0
"""Inputs that a pod lets wait."""
PERIOD = 15
"""Seconds between two looks of the autoscaler."""
TOLERANCE = 0.1
MIN_PODS, MAX_PODS = 1, 20
HOUR = 3600
Series = NDArray[np.float64]


@dataclass(frozen=True)
class Speed:
    """How fast the number of pods may change: bounds for each period, and the stabilisation window, seconds."""

    up_percent: int
    up_pods: int
    down_percent: int
    down_period: int
    window: int


def speed_of(behavior: Manifest) -> Speed:
    """The speed that a `behavior` of an autoscaler gives."""
    up = {policy["type"]: policy["value"] for policy in behavior["scaleUp"]["policies"]}
    (down,) = behavior["scaleDown"]["policies"]
    window = behavior["scaleDown"]["stabilizationWindowSeconds"]
    return Speed(up["Percent"], up["Pods"], down["value"], down["periodSeconds"], window)


OURS = speed_of(BEHAVIOR)
KUBERNETES = Speed(100, 4, 100, PERIOD, 300)


@dataclass(frozen=True)
class Policy:
    """How an autoscaler is set up."""

    name: str
    targets: Mapping[str, float]
    """By metric: queueDepth, queueSeconds, inFlight, cpu; none: a fixed number of pods."""
    speed: Speed = OURS
    fixed: int = 0


@dataclass
class Pod:
    """One pod: what waits in it, and seconds until it is ready."""

    starting: int
    queue: float = 0.0
    arrived: float = 0.0
    """Inputs of the last second."""
    busy: deque[float] = field(default_factory=lambda: deque(maxlen=PERIOD))

    def depth(self) -> float:
        """Inputs that wait when somebody looks: the backlog, and what came while a batch was running. Batches are as
        large as makes what comes in one fill the next: arrivals times cost over the idle share, half of it on average.
        """
        idle = max(1 - self.arrived / RATE, 0.01)
        return self.queue + min(self.arrived * BATCH_SECONDS / (2 * idle), self.arrived)

    def work(self, coming: float) -> None:
        """One second."""
        self.arrived = coming
        done = min(self.queue + coming, RATE)
        self.queue += coming - done
        self.busy.append(done / RATE)


@dataclass(frozen=True)
class Outcome:
    """What became of one traffic."""

    waits: Series
    """Waiting time of the inputs that arrived in each second."""
    arrivals: Series
    pods: Series

    def percentile(self, share: float) -> float:
        """Waiting time that this share of all inputs stays below."""
        order = np.argsort(self.waits)
        passed = np.cumsum(self.arrivals[order])
        return float(self.waits[order][np.searchsorted(passed, share * passed[-1])])

    @property
    def pod_hours(self) -> float:
        return float(self.pods.sum() / HOUR)


class Autoscaler:
    """The documented algorithm; times in whole seconds."""

    def __init__(self, policy: Policy) -> None:
        self._targets, self._speed = policy.targets, policy.speed
        self._wanted: deque[tuple[int, int]] = deque()
        self._history: deque[tuple[int, int]] = deque()

    def decide(self, now: int, pods: Sequence[Pod]) -> int:
        """The number of pods from now on."""
        speed, current = self._speed, len(pods)
        raw = min(max(self._proposals(pods), default=current), MAX_PODS)
        raw = max(raw, MIN_PODS)
        self._wanted.append((now, raw))
        while self._wanted[0][0] <= now - max(speed.window, 1):
            self._wanted.popleft()
        self._history.append((now, current))
        while self._history[0][0] <= now - max(speed.down_period, PERIOD):
            self._history.popleft()
        if raw > current:
            before = min(count for at, count in self._history if at > now - PERIOD)
            bound = max(before + speed.up_pods, math.ceil(before * (1 + speed.up_percent / 100)))
            return max(current, min(raw, bound))
        stable = max(count for _, count in self._wanted)
        before = max(count for at, count in self._history if at > now - speed.down_period)
        bound = math.floor(before * (1 - speed.down_percent / 100))
        return min(current, max(stable, bound, MIN_PODS))

    def _proposals(self, pods: Sequence[Pod]) -> list[int]:
        found = []
        for metric, target in self._targets.items():
            ratio = _average(metric, pods) / target
            still = abs(ratio - 1) <= TOLERANCE
            found.append(len(pods) if still else math.ceil(round(len(pods) * ratio, 6)))
        return found


def _average(metric: str, pods: Sequence[Pod]) -> float:
    if metric == "cpu":
        ready = [pod for pod in pods if pod.busy]
        return mean(mean(pod.busy) for pod in ready) if ready else 0.0
    depth = mean(pod.depth() for pod in pods)
    if metric == "inFlight":
        # What waits, and the batch that is being worked on: twice what waits for it.
        return depth + mean(min(2 * (pod.depth() - pod.queue), RATE) for pod in pods)
    return depth / RATE if metric == "queueSeconds" else depth


def replay(arrivals: Series, policy: Policy, start: int) -> Outcome:
    """Let traffic through, second by second."""
    pods = [Pod(0) for _ in range(policy.fixed or MIN_PODS)]
    autoscaler, outside = Autoscaler(policy), 0.0
    waits, sizes = np.zeros_like(arrivals), np.zeros_like(arrivals)
    for now, coming in enumerate(arrivals):
        ready = [pod for pod in pods if pod.starting <= 0]
        before = outside + sum(pod.queue for pod in ready)
        waits[now] = before / (RATE * len(ready))
        for pod in pods:
            pod.starting -= 1
        outside += coming
        for pod, share in zip(ready, _shares(outside, ready), strict=True):
            outside -= share
            pod.work(share)
        sizes[now] = len(pods)
        if now % PERIOD == 0 and not policy.fixed:
            count = autoscaler.decide(now, pods)
            outside += sum(pod.queue for pod in pods[count:])
            pods = pods[:count] + [Pod(start) for _ in range(count - len(pods))]
    return Outcome(waits, arrivals, sizes)


def _shares(waiting: float, ready: Sequence[Pod]) -> list[float]:
    """What each pod takes: as much as each other, and no more than it may queue."""
    return [min(waiting / len(ready), QUEUE_LIMIT - pod.queue) for pod in ready]
