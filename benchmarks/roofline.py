"""Draws a results file of `benchmarks.gpu` as a roofline: the rate of each work under the limit that the card's best
matrix product sets it.

    python -m benchmarks.roofline benchmarks/results/<gpu>.json

Writes docs/pictures/roofline-<gpu>.png. Needs matplotlib.
"""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
# By a word in a model's name: its precision where that is not 16 bit.
MARKS = {"fp8": "s", "int8": "^"}


def draw(results: Path) -> None:
    """Says so and draws nothing where matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        print("no picture: matplotlib is not installed")
        return
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    content = json.loads(results.read_text())
    peak = 1e12 * content["peak_tflops"]
    rows = [row for row in content["rows"] if row["tokens"] > 1024]
    costs = [row["flops_a_token"] for row in rows]
    span = np.geomspace(0.7 * min(costs), 1.5 * max(costs), 50)
    figure, axes = pyplot.subplots(figsize=(9, 8))
    for share, style in ((1.0, "-"), (0.75, "--"), (0.5, ":")):
        axes.plot(span / 1e9, share * peak / span / 1e6, style, color="0.6", linewidth=1)
        axes.annotate(
            f"{share:.0%}", (span[-1] / 1e9, share * peak / span[-1] / 1e6), color="0.4", va="center"
        )
    colours = pyplot.get_cmap("tab10").colors
    for number, row in enumerate(rows):
        at = (row["flops_a_token"] / 1e9, row["tokens_per_second"] / 1e6)
        label = f"{row['model']}, {row['work']}: {at[1]:.2f} M tokens/s, {row['share_of_peak']:.0%}"
        marker = next((mark for word, mark in MARKS.items() if word in row["model"]), "o")
        axes.plot(*at, marker, color=colours[number % len(colours)], label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("GFLOP a token (products and attention)")
    axes.set_ylabel("million tokens a second")
    axes.set_title(
        f"{content['gpu']}, bfloat16: under the best matrix product ({content['peak_tflops']} TFLOP/s)"
    )
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2, frameon=False)
    axes.grid(visible=True, which="both", linewidth=0.3)
    figure.tight_layout()
    figure.savefig(PICTURES / f"roofline-{results.stem}.png", dpi=120)


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
