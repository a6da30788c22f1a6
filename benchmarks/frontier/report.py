"""docs/frontier.md, its picture and its figures, from what was measured.

The figures stay next to the page (`benchmarks/frontier.json`), so that one cell can be measured
again without the rest.
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
OURS, FIRM = "soft prior (ours)|ours", "firmer prior (ours)|ours"
PUBLISHED = {"SPEED few": 1e-1, "SPEED multi": 1e-4}
"""Thresholds of the published settings."""


FIGURES = Path("benchmarks") / "frontier.json"


def write(measured: dict[str, Any], folder: Path) -> None:
    """The page, its picture and its figures: what was measured now over what was before."""
    path = folder / FIGURES
    known = merged(load_json(path) if path.exists() else {}, _short(measured))
    save_text(path, json.dumps(known, separators=(",", ":")) + "\n")
    save_text(folder / "frontier.md", page(known))
    _plot(_swept(known), folder / "images" / "frontier.png")


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
    """The text in `frontier_text.md` next to this file, with its tables."""
    cells = _swept(known)
    crowds = {name: cell for name, cell in known["cells"].items() if name not in cells}
    text = (Path(__file__).parent / "frontier_text.md").read_text(encoding="utf-8")
    parts = {
        "TABLE": _table(cells),
        "DEFAULTS": _defaults({**cells, **crowds}),
        "PUBLISHED": _published(cells),
        "BUDGET": f"{BUDGET:.0%}",
        "NAMES": f"{NAMES}",
        "OUTPUTS": " and ".join(map(str, OUTPUTS)),
        "WORST": _worst(cells),
    }
    for name, value in parts.items():
        text = text.replace("{" + name + "}", value)
    return text


def _pair(point: Point) -> str:
    return f"{point.left:.2f} / {point.drift:.2f}"


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


def _table(cells: dict[str, Any]) -> str:
    lines = []
    for name, cell in cells.items():
        for key in (key for key in _methods(cells) if key in cell):
            values = [f"{least(cell, key, drift):.2f}" for drift in DRIFTS]
            shown = [f"**{value}**" for value in values] if key == OURS else values
            lines.append([name, *key.split("|"), *shown])
    drifts = [f"{drift:.0%}" for drift in DRIFTS]
    return markdown_table(["encoder, concepts", "method", "rows", *drifts], lines)


def _defaults(cells: dict[str, Any]) -> str:
    head = ["encoder, concepts", "budget", "drift of held-out names", "told apart"]
    head += ["left in unseen prompts", "still to go", "seconds"]
    lines = []
    for name, cell in cells.items():
        point = Point(**cell["default"])
        to_go = "-" if point.to_go is None else f"{point.to_go:.2f}"
        told = "-" if point.told is None else f"{point.told:.0%}"
        line = [name, f"{BUDGET:.0%}", f"{point.drift:.1%}", told, f"{point.left:.2f}", to_go]
        lines.append([*line, f"{point.seconds:.1f}"])
    return markdown_table(head, lines)


def _published(cells: dict[str, Any]) -> str:
    head = ["encoder, concepts", *(f"{name}, as published" for name in PUBLISHED), "ours, default"]
    lines = []
    for name, cell in cells.items():
        line = [name]
        for method, threshold in PUBLISHED.items():
            swept = [point for point in points(cell, f"{method}|bare") if point.at == threshold]
            line.append(_pair(swept[0]) if swept else "refused: no room")
        lines.append([*line, _pair(Point(**cell["default"]))])
    return markdown_table(head, lines)


def _worst(cells: dict[str, Any]) -> str:
    """How far ours is above the best of the others, at its worst."""
    worst = (-1.0, "", 0.0)
    for name, cell in cells.items():
        for drift in DRIFTS:
            keys = [key for key in _methods(cells) if key in cell and key != OURS]
            others = [least(cell, key, drift) for key in keys]
            worst = max(worst, (least(cell, OURS, drift) - min(others), name, drift))
    return f"{worst[0]:+.3f} ({worst[1]}, drift {worst[2]:.0%})"


def _plot(cells: dict[str, Any], path: Path) -> None:
    encoders = list(dict.fromkeys(name.rsplit(", ", 1)[0] for name in cells))
    counts = list(dict.fromkeys(name.rsplit(", ", 1)[1] for name in cells))
    shape = {"figsize": (3.4 * len(counts), 2.9 * len(encoders)), "squeeze": False, "sharey": True}
    figure, axes = plots().subplots(len(encoders), len(counts), **shape)
    for row, encoder in enumerate(encoders):
        for column, count in enumerate(counts):
            axis, cell = axes[row][column], cells.get(f"{encoder}, {count}")
            axis.set_title(f"{encoder}, {count} concept{'' if count == '1' else 's'}", fontsize=10)
            axis.set_xlim(0, 1.2 * BUDGET)
            axis.set_ylim(0, 1.05)
            axis.grid(alpha=0.3)
            if cell is None:
                continue
            for number, key in enumerate(_methods(cells)):
                if key not in cell or key.startswith("RECE"):
                    continue
                if key == OURS and cell.get(FIRM):
                    style = {"color": "black", "lw": 1.4, "label": "firmer prior (ours)"}
                    axis.plot(*_curve(cell, FIRM), "--", **style)
                color, width = ("black", 2.4) if key == OURS else (f"C{number % 5}", 1.1)
                dashes = "-" if key.endswith("|ours") else ":"
                axis.plot(*_curve(cell, key), dashes, label=_label(key), color=color, lw=width)
            point = ([cell["default"][name]] for name in ("drift", "left"))
            axis.plot(*point, "o", color="crimson", label="what auto chooses")
            axis.axvline(BUDGET, color="grey", lw=0.8, ls="--")
    for axis in axes[-1]:
        axis.set_xlabel("drift of held-out names")
    for line in axes:
        line[0].set_ylabel("left in unseen prompts")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=4, fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0.95 / figure.get_figheight(), 1, 1))  # an inch for the legend
    save_figure(figure, path, 100)


def _curve(cell: dict[str, Any], key: str) -> Iterator[tuple[float, ...]]:
    """Drifts and what is left, from no edit on."""
    return zip(*sorted([(0.0, 1.0), *((p.drift, p.left) for p in points(cell, key))]), strict=True)


def _label(key: str) -> str:
    method, rows = key.split("|")
    return method if key == OURS else f"{method}, {'our' if rows == 'ours' else rows} rows"
