"""Which metric, which target, which speed? Replayed traffic through the autoscaler's algorithm.

    python -m benchmarks.scaling [--picture FILE]

A model with steps of one second. Inputs arrive; each ready pod takes what it may queue, and the rest waits with the
clients, who come back (429 and Retry-After); so what waits moves to new pods once they are ready. A pod works at a
fixed rate with a fixed cost a batch, so that some inputs wait in any pod that has work, the more the busier it is.
Every 15 s the HorizontalPodAutoscaler looks, and does what its documentation says: the wanted number is the current
one times the metric's average over its target, rounded up, the largest of several metrics; nothing is done within a
tenth; policies bound growth and shrinking, and it shrinks only to the most that was wanted within the stabilisation
window. New pods become ready after 10, 60 or 180 s; until then they report zeros and take nothing. CPU is the share of
time that ready pods were busy since the last look, never above 1: it cannot say how much is missing.

Printed are the 99th percentile of the time that inputs wait, mean over the kinds of traffic, and pod-hours, sum over
them. What the model leaves out flatters small targets: gauges are looked at for an instant, and here they are means.
"""

from __future__ import annotations

import argparse
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean

import numpy as np
from numpy.typing import NDArray

from embedserve_operator.drift import quantity
from embedserve_operator.specs.autoscaler import BEHAVIOR, TARGETS
from embedserve_operator.wire import Manifest

RATE = 140.0
"""Inputs a second of one pod: MiniLM on two cores, texts of 50 tokens at 7 k tokens/s (benchmarks/packing.py)."""
BATCH_SECONDS = 0.005
"""Cost of a batch beside its inputs: what one short text takes alone."""
QUEUE_LIMIT = 4096.0
"""Inputs that a pod lets wait."""
PERIOD = 15
"""Seconds between two looks of the autoscaler."""
TOLERANCE = 0.1
LEAST, MOST = 1, 20
HOUR = 3600
STARTS = (10, 60, 180)
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
        raw = min(max(self._proposals(pods), default=current), MOST)
        raw = max(raw, LEAST)
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
        return min(current, max(stable, bound, LEAST))

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
    pods = [Pod(0) for _ in range(policy.fixed or LEAST)]
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


def traffic() -> dict[str, Series]:
    """Two hours of each kind, in inputs a second; the same at every run."""
    source, seconds = np.random.default_rng(0), np.arange(2 * HOUR)
    steps = np.select([seconds < 1800, seconds < 4500], [0.5, 6.0], 1.5) * RATE
    spikes = np.full(len(seconds), 0.6 * RATE)
    for at in (900, 2700, 5000):
        spikes[at : at + 120] = 8 * RATE
    wave = (3.5 - 3 * np.cos(2 * np.pi * seconds / (2 * HOUR))) * RATE
    bursts = np.full(len(seconds), 0.3 * RATE)
    # Jobs of 10,000 texts, sent as fast as they are taken.
    for at in source.choice(len(seconds) - 900, 12, replace=False):
        bursts[at : at + 10] += 1_000.0
    return {
        name: source.poisson(rate).astype(np.float64)
        for name, rate in {
            "steps": steps,
            "spikes": spikes,
            "daily wave": wave,
            "10,000-text jobs": bursts,
        }.items()
    }


def policies() -> list[Policy]:
    """All that are compared."""
    found = [Policy(f"queueDepth {target:g}", {"queueDepth": target}) for target in (1, 4, 16, 64, 256)]
    found += [Policy(f"queueSeconds {target:g}", {"queueSeconds": target}) for target in (0.1, 0.5, 1, 4)]
    found += [Policy(f"inFlight {target:g}", {"inFlight": target}) for target in (4, 16, 64)]
    found += [Policy(f"cpu {target:.0%}", {"cpu": target}) for target in (0.5, 0.7, 0.9)]
    depth = {"queueDepth": default("queueDepth")}
    found += [
        Policy(f"queueDepth {depth['queueDepth']:g} and cpu 70%", {**depth, "cpu": 0.7}),
        Policy(f"queueDepth {depth['queueDepth']:g}, Kubernetes' speed", depth, KUBERNETES),
        Policy(f"queueDepth {depth['queueDepth']:g}, halved a minute", depth, replace(OURS, down_percent=50)),
        Policy("cpu 70%, Kubernetes' speed", {"cpu": 0.7}, KUBERNETES),
        Policy("8 pods, fixed", {}, fixed=8),
    ]
    return found


def default(metric: str) -> float:
    """The operator's own target."""
    return float(quantity(TARGETS[metric]) or 0)


def main() -> None:
    """Print the table; draw the picture where asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--picture", type=Path, default=None, help="SVG file to write")
    picture: Path | None = parser.parse_args().picture
    kinds = traffic()
    print(f"{'':34}" + "".join(f"{f'start-up {start} s':>22}" for start in STARTS))
    print(f"{'policy':34}" + f"{'p99 wait':>10}{'pod-hours':>12}" * len(STARTS))
    runs: dict[tuple[str, str, int], Outcome] = {}
    for policy in policies():
        line = f"{policy.name:34}"
        for start in STARTS:
            found = {kind: replay(arrivals, policy, start) for kind, arrivals in kinds.items()}
            runs.update({(policy.name, kind, start): outcome for kind, outcome in found.items()})
            waits = mean(outcome.percentile(0.99) for outcome in found.values())
            line += f"{waits:>8.1f} s{sum(outcome.pod_hours for outcome in found.values()):>12.1f}"
        print(line)
    print()
    print(f"{'by traffic, start-up 60 s':34}" + "".join(f"{kind:>22}" for kind in kinds))
    for policy in policies():
        cells = [runs[policy.name, kind, 60] for kind in kinds]
        print(
            f"{policy.name:34}" + "".join(f"{c.percentile(0.99):>8.1f} s{c.pod_hours:>12.1f}" for c in cells)
        )
    if picture is not None:
        # It knows this module.
        from benchmarks.scaling_picture import draw

        depth = f"queueDepth {default('queueDepth'):g}"
        chosen = [depth, "cpu 70%", f"{depth} and cpu 70%"]
        picture.write_text(
            draw({name: {k: runs[name, k, 60] for k in kinds} for name in chosen}, RATE), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
