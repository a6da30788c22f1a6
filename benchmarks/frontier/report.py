"""docs/frontier.md, its picture and its figures, from what was measured.

The figures stay beside the page (`benchmarks/frontier.json`), so that one cell can be measured
again without the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from speed_erase.speed_ops.engine.settings import EraseSettings

from ..figures import plots
from ..storage import load_json, write_whole
from .cells import NAMES, OUTPUTS, Point, least_left

BUDGET = EraseSettings.preset("auto").drift_budget
DRIFTS = (0.05, 0.10, 0.20, 0.30)
OURS, FIRM = "soft prior (ours)|ours", "firmer prior (ours)|ours"
PUBLISHED = {"SPEED few": 1e-1, "SPEED multi": 1e-4}
"""Thresholds of the published settings."""


FIGURES = Path("benchmarks") / "frontier.json"


def write(measured: dict[str, Any], folder: Path) -> None:
    """The page and all that belongs to it: figures from before, and over them what was measured
    now.
    """
    path = folder / FIGURES
    known = merged(load_json(path) if path.exists() else {}, _short(measured))
    write_whole(
        path,
        lambda part: part.write_text(
            json.dumps(known, separators=(",", ":")) + "\n", encoding="utf-8"
        ),
    )
    write_whole(folder / "frontier.md", lambda part: part.write_text(page(known), encoding="utf-8"))
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
    """The text in `frontier_text.md` beside this file, with its tables."""
    cells = _swept(known)
    crowds = {name: cell for name, cell in known["cells"].items() if name not in cells}
    text = (Path(__file__).parent / "frontier_text.md").read_text(encoding="utf-8")
    parts = {
        "TABLE": "\n".join(_table(cells)),
        "DEFAULTS": "\n".join(_defaults({**cells, **crowds})),
        "PUBLISHED": "\n".join(_published(cells)),
        "POSITIONS": "\n".join(_positions(known.get("clip rows", []))),
        "BUDGET": f"{BUDGET:.0%}",
        "NAMES": f"{NAMES}",
        "OUTPUTS": " and ".join(map(str, OUTPUTS)),
        "WORST": _worst(cells),
        "TIME": _time(known) if known.get("rows") else "",
    }
    for name, value in parts.items():
        text = text.replace("{" + name + "}", value)
    return text


TIME = """## Where the time goes

Ten concepts at a budget of {:.0%}, by what is encoded and by how soft the prior is: left / drift
(`python -m benchmarks.frontier rows`).{}

"""
EARLIER = " From before the default was raised, and with another training of the living model."


def _time(known: dict[str, Any]) -> str:
    at = known["rows budget"]
    return TIME.format(at, "" if at == BUDGET else EARLIER) + "\n".join(_rows(known["rows"]))


def _rows(known: dict[str, dict[str, Any]]) -> Iterator[str]:
    encoders = list(known)
    yield "| variation | " + " | ".join(encoders) + " |"
    yield "|" + " --- |" * (1 + len(encoders))
    for variation in dict.fromkeys(name for found in known.values() for name in found):
        points = [known[encoder].get(variation) for encoder in encoders]
        shown = [f"{point['left']:.2f} / {point['drift']:.2f}" if point else "" for point in points]
        yield f"| {variation} | " + " | ".join(shown) + " |"


def points(cell: dict[str, Any], key: str) -> list[Point]:
    """The stored points of a method."""
    return [Point(**point) for point in cell.get(key, [])]


def least(cell: dict[str, Any], key: str, drift: float) -> float:
    """The least that a method leaves within a drift; ours has two priors to choose from."""
    if key != OURS:
        return least_left(points(cell, key), drift)
    return min(
        least_left([*points(cell, own), Point(**cell["default"])], drift) for own in (OURS, FIRM)
    )


def _methods(cells: dict[str, Any]) -> list[str]:
    return list(
        dict.fromkeys(key for cell in cells.values() for key in cell if "|" in key and key != FIRM)
    )


def _table(cells: dict[str, Any]) -> Iterator[str]:
    yield (
        "| encoder, concepts | method | rows | "
        + " | ".join(f"{drift:.0%}" for drift in DRIFTS)
        + " |"
    )
    yield "|" + " --- |" * (3 + len(DRIFTS))
    for name, cell in cells.items():
        for key in _methods(cells):
            if key in cell:
                method, rows = key.split("|")
                values = [least(cell, key, drift) for drift in DRIFTS]
                shown = [f"**{value:.2f}**" if key == OURS else f"{value:.2f}" for value in values]
                yield f"| {name} | {method} | {rows} | " + " | ".join(shown) + " |"


def _defaults(cells: dict[str, Any]) -> Iterator[str]:
    head = [
        "encoder, concepts",
        "budget",
        "drift of held-out names",
        "told apart",
        "left in unseen prompts",
    ]
    head += ["still to go", "seconds"]
    yield f"| {' | '.join(head)} |"
    yield "|" + " --- |" * len(head)
    for name, cell in cells.items():
        point = Point(**cell["default"])
        to_go = "-" if point.to_go is None else f"{point.to_go:.2f}"
        told = "-" if point.told is None else f"{point.told:.0%}"
        shown = f"{point.drift:.1%} | {told} | {point.left:.2f} | {to_go} | {point.seconds:.1f}"
        yield f"| {name} | {BUDGET:.0%} | {shown} |"


def _published(cells: dict[str, Any]) -> Iterator[str]:
    yield (
        "| encoder, concepts | SPEED few, as published | SPEED multi, as published | ours,"
        " default |"
    )
    yield "| --- | --- | --- | --- |"
    for name, cell in cells.items():
        shown = []
        for method, threshold in PUBLISHED.items():
            own = [point for point in points(cell, f"{method}|bare") if point.at == threshold]
            shown.append(f"{own[0].left:.2f} / {own[0].drift:.2f}" if own else "refused: no room")
        default = Point(**cell["default"])
        yield f"| {name} | {shown[0]} | {shown[1]} | {default.left:.2f} / {default.drift:.2f} |"


def _positions(lines: Sequence[Sequence[Any]]) -> Iterator[str]:
    yield (
        "| positions on both sides | left near the name | left in the padding | drift of the"
        " others |"
    )
    yield "| --- | --- | --- | --- |"
    for name, near, padding, drift in lines:
        yield f"| {name} | {near:.3f} | {padding:.3f} | {drift:.3f} |"


def _worst(cells: dict[str, Any]) -> str:
    """How far ours is above the best of the others, at its worst."""
    worst = (-1.0, "", 0.0)
    for name, cell in cells.items():
        for drift in DRIFTS:
            others = [
                least(cell, key, drift) for key in _methods(cells) if key in cell and key != OURS
            ]
            worst = max(worst, (least(cell, OURS, drift) - min(others), name, drift))
    return f"{worst[0]:+.3f} ({worst[1]}, drift {worst[2]:.0%})"


def _plot(cells: dict[str, Any], path: Path) -> None:
    encoders = list(dict.fromkeys(name.rsplit(", ", 1)[0] for name in cells))
    counts = list(dict.fromkeys(name.rsplit(", ", 1)[1] for name in cells))
    figure, axes = plots().subplots(
        len(encoders),
        len(counts),
        figsize=(3.4 * len(counts), 2.9 * len(encoders)),
        squeeze=False,
        sharey=True,
    )
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
                line = sorted([(0.0, 1.0), *((p.drift, p.left) for p in points(cell, key))])
                if key == OURS and cell.get(FIRM):
                    firm = sorted([(0.0, 1.0), *((p.drift, p.left) for p in points(cell, FIRM))])
                    axis.plot(
                        *zip(*firm, strict=True),
                        "--",
                        color="black",
                        lw=1.4,
                        label="firmer prior (ours)",
                    )
                style = (
                    {"color": "black", "lw": 2.4}
                    if key == OURS
                    else {"color": f"C{number % 5}", "lw": 1.1}
                )
                dashes = "-" if key.endswith("|ours") else ":"
                axis.plot(*zip(*line, strict=True), dashes, label=_label(key), **style)
            default = cell["default"]
            axis.plot(
                [default["drift"]],
                [default["left"]],
                "o",
                color="crimson",
                label="what auto chooses",
            )
            axis.axvline(BUDGET, color="grey", lw=0.8, ls="--")
    for axis in axes[-1]:
        axis.set_xlabel("drift of held-out names")
    for line in axes:
        line[0].set_ylabel("left in unseen prompts")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=4, fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0.95 / figure.get_figheight(), 1, 1))  # an inch for the legend
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def _label(key: str) -> str:
    method, rows = key.split("|")
    return method if key == OURS else f"{method}, {'our' if rows == 'ours' else rows} rows"
