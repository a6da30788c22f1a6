"""docs/research/limits.md, its plot and its data, from what was measured.

The data stay next to the page, so that one cell can be measured again without the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from speed_erase.speed_ops.engine.settings import EraseSettings

from ..figures import markdown_table, plots, save_figure
from ..storage import load_json, save_text
from .cells import NAMES, OUTPUTS, Point, least_left

BUDGET = EraseSettings.preset("auto").drift_budget
DRIFTS = (0.05, 0.10, 0.20, 0.30)
SHOWN = 0.20
"""The drift of the table on the page."""
PLOTTED = ("1", "10", "100")
"""Numbers of concepts in the plot."""
OURS, FIRM = "soft prior (ours)|ours", "firmer prior (ours)|ours"
PUBLISHED = {"SPEED few": 1e-1, "SPEED multi": 1e-4}
"""Thresholds of the published settings."""
DATA = Path("data") / "limits.json"
TEXT = Path(__file__).parent / "page.md"
LINES = {
    OURS: ("black", "-", 2.6, "SPEED, our rows (soft prior)"),
    "UCE|ours": ("#2878b5", "-", 1.6, "UCE, our rows"),
    "null space only|ours": ("#8a63b8", "-", 1.6, "null space, our rows"),
    "SPEED few|ours": ("#e08a2e", "-", 1.6, "SPEED few, our rows"),
    "SPEED few|bare": ("#e08a2e", ":", 1.8, "SPEED few, bare names"),
    "UCE|bare": ("#2878b5", ":", 1.8, "UCE, bare names"),
}
"""What the plot shows: color, dashes, width, label."""


def write(measured: dict[str, Any], folder: Path) -> None:
    """The page, its plot and its data: what was measured now over what was before."""
    path = folder / DATA
    known = merged(load_json(path) if path.exists() else {}, _short(measured))
    save_text(path, json.dumps(known, separators=(",", ":")) + "\n")
    save_text(path.with_suffix(".csv"), table_csv(_swept(known)))
    save_text(folder / "limits.md", page(known))
    _plot(_swept(known), folder / "limits.png")


def merged(before: Any, now: Any) -> Any:
    """What was measured now in place of the same thing from before."""
    if isinstance(before, dict) and isinstance(now, dict):
        return before | {key: merged(before.get(key), value) for key, value in now.items()}
    return now


def _short(value: Any) -> Any:
    """Every number with four digits: more than any table shows."""
    if isinstance(value, dict):
        return {key: _short(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_short(one) for one in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _swept(known: dict[str, Any]) -> dict[str, Any]:
    """The cells with every method, without those of the default alone."""
    return {name: cell for name, cell in known["cells"].items() if OURS in cell}


def page(known: dict[str, Any]) -> str:
    """The text in `page.md` next to this file, with its tables."""
    cells = _swept(known)
    defaults = {name: Point(**cell["default"]) for name, cell in known["cells"].items()}
    most = max(defaults, key=lambda name: defaults[name].drift)
    parts = {
        "TABLE": _table(cells),
        "DEFAULTS": _defaults(known["cells"]),
        "BUDGET": f"{BUDGET:.2f}",
        "NAMES": f"{NAMES}",
        "OUTPUTS": " and ".join(map(str, OUTPUTS)),
        "DRIFT": f"{SHOWN:.2f}",
        "DRIFT_1": f"{defaults['mpnet, 1'].drift:.2f}",
        "DRIFT_100": f"{defaults['mpnet, 100'].drift:.2f}",
        "CELLS": f"{len(defaults)}",
        "MOST": f"{defaults[most].drift:.2f} ({most})",
        "WORST": _worst(cells),
    }
    text = TEXT.read_text(encoding="utf-8")
    for name, value in parts.items():
        text = text.replace("{" + name + "}", value)
    return text


def points(cell: dict[str, Any], key: str) -> list[Point]:
    """The stored points of a method."""
    return [Point(**point) for point in cell.get(key, [])]


def least(cell: dict[str, Any], key: str, drift: float) -> float:
    """The least that a method leaves within a drift; ours has two priors to choose from."""
    if key != OURS:
        return least_left(points(cell, key), drift)
    default = Point(**cell["default"])
    return min(least_left([*points(cell, own), default], drift) for own in (OURS, FIRM))


def _methods(cells: dict[str, Any]) -> list[str]:
    keys = dict.fromkeys(key for cell in cells.values() for key in cell if "|" in key)
    return [key for key in keys if key != FIRM]


def table_csv(cells: dict[str, Any]) -> str:
    """The least that every method leaves at every drift."""
    drifts = ",".join(f"{drift:.2f}" for drift in DRIFTS)
    lines = [f"encoder,concepts,method,rows,{drifts}"]
    for name, cell in cells.items():
        for key in (key for key in _methods(cells) if key in cell):
            values = [f"{least(cell, key, drift):.2f}" for drift in DRIFTS]
            lines.append(",".join([*name.rsplit(", ", 1), *key.split("|"), *values]))
    return "\n".join(lines) + "\n"


def _table(cells: dict[str, Any]) -> str:
    """Ours, and the best of the others with our rows and with bare names, at one drift."""
    head = ["encoder, concepts", "ours", "best rival, our rows", "", "best rival, bare names", ""]
    lines = []
    for name, cell in cells.items():
        line = [name, f"{least(cell, OURS, SHOWN):.2f}"]
        for rows in ("ours", "bare"):
            keys = [key for key in _methods(cells) if key.endswith(f"|{rows}") and key in cell]
            left = {key: least(cell, key, SHOWN) for key in keys if key != OURS}
            best = min(left, key=lambda key: left[key])
            label = "none erases" if left[best] >= 0.995 else best.split("|")[0]
            line += [label, f"{left[best]:.2f}"]
        lines.append(line)
    return markdown_table(head, lines)


def _defaults(cells: dict[str, Any]) -> str:
    head = ["encoder, concepts", "remaining", "distance", "drift", "still distinct", "seconds"]
    lines = []
    for name, cell in cells.items():
        point = Point(**cell["default"])
        to_go = "-" if point.to_go is None else f"{point.to_go:.2f}"
        told = "-" if point.told is None else f"{point.told:.0%}"
        line = [name, f"{point.left:.2f}", to_go, f"{point.drift:.2f}", told]
        line.append(f"{point.seconds:.1f}")
        for method, threshold in PUBLISHED.items():
            swept = [point for point in points(cell, f"{method}|bare") if point.at == threshold]
            line.append(f"{swept[0].left:.2f}/{swept[0].drift:.2f}" if swept else "-")
        lines.append(line)
    return markdown_table([*head, *PUBLISHED], lines)


def _worst(cells: dict[str, Any]) -> str:
    """How far ours is above the best of the others, at its worst."""
    worst = (-1.0, "", 0.0)
    for name, cell in cells.items():
        for drift in DRIFTS:
            keys = [key for key in _methods(cells) if key in cell and key != OURS]
            others = [least(cell, key, drift) for key in keys]
            worst = max(worst, (least(cell, OURS, drift) - min(others), name, drift))
    return f"{worst[0]:.3f} ({worst[1]}, drift {worst[2]:.2f})"


def _plot(cells: dict[str, Any], path: Path) -> None:
    encoders = list(dict.fromkeys(name.rsplit(", ", 1)[0] for name in cells))
    shape = {"figsize": (4.1 * len(PLOTTED), 3.1 * len(encoders) + 0.8), "squeeze": False}
    figure, axes = plots().subplots(len(encoders), len(PLOTTED), **shape)
    for row, encoder in enumerate(encoders):
        for axis, count in zip(axes[row], PLOTTED, strict=True):
            noun = "concept" if count == "1" else "concepts"
            axis.set_title(f"{encoder}, {count} {noun}", fontsize=12)
            axis.set(xlim=(0, 0.6), ylim=(0, 1), xticks=[0, 0.2, 0.4, 0.6])
            axis.set_yticks([0, 0.25, 0.5, 0.75, 1])
            axis.grid(alpha=0.3)
            axis.axvline(BUDGET, color="#777777", lw=1, ls="--", label="the default limit")
            cell = cells.get(f"{encoder}, {count}", {})
            for key, (color, dashes, width, label) in LINES.items():
                if key in cell:
                    axis.plot(*_curve(cell, key), dashes, color=color, lw=width, label=label)
            if cell:
                point = ([cell["default"][name]] for name in ("drift", "left"))
                axis.plot(*point, "o", ms=8, color="crimson", label="what auto chooses")
    for axis in axes[-1]:
        axis.set_xlabel("drift of test names", fontsize=11)
    for line in axes:
        line[0].set_ylabel("remaining in new prompts", fontsize=11)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=3, fontsize=12, frameon=False)
    figure.tight_layout(rect=(0, 1.0 / figure.get_figheight(), 1, 1))  # an inch for the legend
    save_figure(figure, path, 80)


def _curve(cell: dict[str, Any], key: str) -> Iterator[tuple[float, ...]]:
    """Drifts and what remains, from no edit on."""
    return zip(*sorted([(0.0, 1.0), *((p.drift, p.left) for p in points(cell, key))]), strict=True)
