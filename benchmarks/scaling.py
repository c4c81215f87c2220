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

from dataclasses import replace
from pathlib import Path
from statistics import mean

import numpy as np

from benchmarks.autoscaler_model import HOUR, KUBERNETES, OURS, RATE, Outcome, Policy, Series, replay
from benchmarks.command_line import parser_of
from benchmarks.scaling_picture import draw
from embedserve_operator.api.quantities import parse_quantity
from embedserve_operator.manifests.autoscaler import TARGETS

STARTS = (10, 60, 180)


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
    return float(parse_quantity(TARGETS[metric]) or 0)


def main() -> None:
    """Print the table; draw the picture where asked for."""
    parser = parser_of(__doc__)
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
        depth = f"queueDepth {default('queueDepth'):g}"
        chosen = [depth, "cpu 70%", f"{depth} and cpu 70%"]
        picture.write_text(
            draw({name: {k: runs[name, k, 60] for k in kinds} for name in chosen}, RATE), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
