"""Seconds against the number of concepts and of retain names, with fitted exponents."""

from __future__ import annotations

import json
import math
from pathlib import Path

from speed_erase.speed_ops import EraseSettings, solve

from .shapes import problem
from .timing import timed

CONCEPTS = (1, 3, 10, 30, 100, 300, 1000)
NAMES = (100, 300, 1000, 3000, 10_000, 20_000)
# points that the exponent is fitted to: the largest ones, where the cost is past its fixed part
TAIL = 3


def run(out: Path | None) -> None:
    """Times SD1.x shapes along both axes; writes a table, JSON and a plot."""
    settings = EraseSettings()
    series = {
        "concepts": [(n, _seconds(n, 1734, settings)) for n in CONCEPTS],
        "names": [(names, _seconds(10, names, settings)) for names in NAMES],
    }
    lines = ["| axis | work | seconds |", "|---|---|---|"]
    for axis, points in series.items():
        lines += [f"| {axis} | {count} | {seconds:.2f} |" for count, seconds in points]
        lines.append(f"| {axis} | exponent of the last {TAIL} points | {exponent(points):.2f} |")
    print("\n".join(lines))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "growth.json").write_text(json.dumps(series, indent=1) + "\n")
        (out / "growth.md").write_text("\n".join(lines) + "\n")
        _plot(series, out / "growth.png")


def exponent(points: list[tuple[int, float]]) -> float:
    """Slope of log seconds over log work, by least squares on the largest points."""
    logs = [(math.log(count), math.log(seconds)) for count, seconds in points[-TAIL:]]
    mean_x, mean_y = (sum(values) / len(logs) for values in zip(*logs, strict=True))
    above = sum((x - mean_x) * (y - mean_y) for x, y in logs)
    return above / sum((x - mean_x) ** 2 for x, _ in logs)


def _seconds(concepts: int, names: int, settings: EraseSettings) -> float:
    weights, rows = problem("sd1", concepts, names)
    return timed(lambda: solve(weights, *rows, settings))[0]


def _plot(series: dict[str, list[tuple[int, float]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.4), sharey=True)
    labels = {
        "concepts": "concepts erased (1,734 names kept)",
        "names": "names kept (10 concepts erased)",
    }
    for axis, (name, points) in zip(axes, series.items(), strict=True):
        axis.loglog(*zip(*points, strict=True), marker="o", color="#3b6fb6")
        axis.set_xlabel(labels[name])
        axis.grid(True, which="major", alpha=0.3)
        axis.set_title(f"exponent at the end {exponent(points):.2f}", fontsize=10)
    axes[0].set_ylabel("seconds, 16 SD1.x layers, 2 cores")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
