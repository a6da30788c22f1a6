"""Seconds by preset, and against the number of concepts and of kept names."""

from __future__ import annotations

import math
from pathlib import Path

from speed_erase.speed_ops import EraseSettings, RowSet, solve

from .figures import plots
from .shapes import SHAPES, problem
from .timing import one_of_each_size, save, timed

CONCEPTS = (1, 3, 10, 30, 100, 300, 1000)
NAMES = (100, 300, 1000, 3000, 10_000, 20_000)
TAIL = 3
"""Points that an exponent is fitted to: the largest ones, where the cost is past its fixed part."""
PRESETS = ("auto", "context", "few", "multi")


def presets(out: Path | None) -> None:
    """100 concepts against 1,734 names by each preset: what users wait for after encoding."""
    results = []
    print("| shapes | preset | edit | certificate | in all |\n|---|---|---|---|---|")
    for family in SHAPES:
        for preset in PRESETS:
            settings = EraseSettings.preset(preset)
            weights, given = problem(family, 100, 1734)
            solve(one_of_each_size(weights), RowSet.of(*given), settings)
            rows = RowSet.of(*given)
            seconds, erasure = timed(lambda w=weights, r=rows, s=settings: solve(w, r, s))
            certificate = erasure.certificate.seconds["certificate"]  # type: ignore[attr-defined]
            edit = seconds - certificate
            print(f"| {family} | {preset} | {edit:.2f} s | {certificate:.2f} s | {seconds:.2f} s |")
            results.append({"family": family, "preset": preset, "edit": edit})
            results[-1] |= {"certificate": certificate, "all": seconds}
    if out is not None:
        save(out, "presets", results)


def growth(out: Path | None) -> None:
    """SD1.x shapes along both axes."""
    series = {"concepts": [(count, _seconds(count, 1734)) for count in CONCEPTS]}
    series["names"] = [(count, _seconds(10, count)) for count in NAMES]
    print("| axis | work | seconds |\n|---|---|---|")
    for axis, points in series.items():
        for count, seconds in points:
            print(f"| {axis} | {count} | {seconds:.2f} |")
        print(f"| {axis} | exponent of the last {TAIL} points | {exponent(points):.2f} |")
    if out is not None:
        save(out, "growth", series)
        _plot(series, out / "growth.png")


def exponent(points: list[tuple[int, float]]) -> float:
    """Slope of log seconds over log work, by least squares on the largest points."""
    logs = [(math.log(count), math.log(seconds)) for count, seconds in points[-TAIL:]]
    mean_x, mean_y = (sum(values) / len(logs) for values in zip(*logs, strict=True))
    above = sum((x - mean_x) * (y - mean_y) for x, y in logs)
    return above / sum((x - mean_x) ** 2 for x, _ in logs)


def _seconds(concepts: int, names: int) -> float:
    weights, rows = problem("sd1", concepts, names)
    return timed(lambda: solve(weights, RowSet.of(*rows), EraseSettings()))[0]


def _plot(series: dict[str, list[tuple[int, float]]], path: Path) -> None:
    figure, axes = plots().subplots(1, 2, figsize=(9, 3.4), sharey=True)
    labels = ("concepts erased (1,734 names kept)", "names kept (10 concepts erased)")
    for axis, label, points in zip(axes, labels, series.values(), strict=True):
        axis.loglog(*zip(*points, strict=True), marker="o", color="#3b6fb6")
        axis.set_xlabel(label)
        axis.grid(True, which="major", alpha=0.3)
        axis.set_title(f"exponent at the end {exponent(points):.2f}", fontsize=10)
    axes[0].set_ylabel("seconds, 16 SD1.x layers, 2 cores")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
