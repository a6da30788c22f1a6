"""A certificate, a forecast or a comparison as one picture, drawn with Pillow alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..certificate.certificate import GROUPS, PLACES, Certificate, verdict_in_words
from ..certificate.forecast import Forecast
from ..engine.curve import Curve

Pixels = NDArray[np.uint8]
"""Height x width x 3."""
_WIDTH = 900
_ROW = 26
_LABEL = 250
_MARGIN = 24
_SHOWN = 20
_GAP = 4
_INK, _PALE, _GRID = (32, 36, 44), (120, 128, 140), (226, 230, 236)
_NEUTRAL, _FAINT, _CHOSEN = (66, 114, 196), (150, 180, 226), (197, 48, 48)
_COLOURS = {
    "erased": (38, 139, 96),
    "weakened": (214, 158, 46),
    "stands": (197, 48, 48),
    "unproven": _PALE,
}
_PLOT = 260
"""Height of the trade-off's plot."""


@dataclass(frozen=True)
class Bar:
    """One bar of a panel."""

    label: str
    value: float
    colour: tuple[int, int, int]
    note: str
    strong: float | None = None
    """Up to here in full colour, pale from there on; all of it if None."""


@dataclass(frozen=True)
class Panel:
    """A title and bars on a scale from 0 to `full`."""

    title: str
    bars: tuple[Bar, ...]
    full: float


def certificate_chart(certificate: Certificate) -> Pixels:
    """How much of each concept is left in unseen prompts, how far the kept names moved, and what
    else was to be had.
    """
    panels = [_concepts(certificate), _drift(certificate)]
    if certificate.pooled is not None:
        panels.append(
            replace(
                _concepts(certificate.pooled),
                title="Pooled path: how much of each concept is left there",
            )
        )
        panels.append(
            replace(
                _drift(certificate.pooled), title="Pooled path: how far the kept names moved there"
            )
        )
    return draw(panels, certificate.curve)


def forecast_chart(forecast: Forecast) -> Pixels:
    """The names that the bare edit would move most."""
    pairs = list(zip(forecast.names, forecast.shifts, strict=True))[:_SHOWN]
    full = max([shift for _, shift in pairs], default=0.0) or 1.0
    bars = tuple(Bar(name, shift, _NEUTRAL, f"{shift:.1%}") for name, shift in pairs)
    return draw([Panel("Predicted shift of the names if nothing protected them", bars, full)])


def _concepts(certificate: Certificate) -> Panel:
    results = sorted(certificate.concepts, key=lambda one: -(one.probe_median or one.solved_median))
    bars = []
    for one in results[:_SHOWN]:
        left = one.probe_median if one.probe_median is not None else one.solved_median
        note = f"{left:.0%} left, {verdict_in_words(one.verdict)}"
        bars.append(Bar(one.name, left, _COLOURS[one.verdict], note, one.probe_to_go))
    title = (
        "Concepts: how much is left in unseen prompts (strong: straight way to the anchor; pale:"
        " went astray)"
    )
    return Panel(title, tuple(bars), 1.0)


def _drift(certificate: Certificate) -> Panel:
    bars = []
    for part in certificate.drift:
        label = f"{GROUPS[part.group]}, {PLACES[part.where]} ({part.names})"
        bars.append(
            Bar(
                label,
                part.median,
                _NEUTRAL,
                f"median {part.median:.1%}, maximum {part.maximum:.1%}",
            )
        )
        bars += [Bar(f"    {name}", value, _PALE, f"{value:.1%}") for name, value in part.worst[:3]]
    full = max([bar.value for bar in bars], default=0.0)
    return Panel("Drift: how far the kept names moved", tuple(bars[:_SHOWN]), max(full, 0.05))


def draw(panels: Sequence[Panel], curve: Curve | None = None) -> Pixels:
    """The panels below each other, and the trade-off below them."""
    from PIL import Image, ImageDraw

    height = _MARGIN + sum((len(panel.bars) + 2) * _ROW for panel in panels)
    height += _PLOT + 3 * _ROW if curve is not None else 0
    picture = Image.new("RGB", (_WIDTH, height), "white")
    pen = ImageDraw.Draw(picture)
    top = _MARGIN
    for panel in panels:
        top = _draw_panel(pen, panel, top)
    if curve is not None:
        _draw_curve(pen, curve, top)
    return np.array(picture)


Place = tuple[float, float]
"""(drift, left)."""


def plotted(
    points: Iterable[Place], chosen: Place, budget: float | None
) -> tuple[list[Place], float]:
    """The line of a trade-off, from no edit at all and through the chosen point, and the drift at
    its right end.

    That is three times what counts: the curve goes on to edits that nobody wants.
    """
    reach = max(0.05, 3 * max(chosen[0], budget or 0.0))
    return [(0.0, 1.0), *(place for place in sorted({*points, chosen}) if place[0] <= reach)], reach


def _draw_curve(pen: Any, curve: Curve, top: int) -> None:
    title = (
        "Trade-off: what is left of the concepts (upwards) against the drift of other names (to the"
        " right)"
    )
    pen.text((_MARGIN, top), title, fill=_INK, font=_font(16))
    left, right, high, low = _MARGIN + 50, _WIDTH - _MARGIN, top + _ROW + 8, top + _ROW + _PLOT
    chosen = curve.chosen.drift, curve.chosen.left
    line, reach = plotted(
        ((point.drift, point.left) for point in curve.points), chosen, curve.budget
    )
    way = [
        (0.0, 1.0),
        *((point.drift, point.to_go) for point in curve.points if point.drift <= reach),
    ]

    def place(drift: float, share: float) -> tuple[float, float]:
        return left + (right - left) * drift / reach, low - (low - high) * min(1.0, share)

    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = place(0.0, share)[1]
        pen.line((left, y, right, y), fill=_GRID)
        pen.text((_MARGIN, y - 8), f"{share:.0%}", fill=_PALE, font=_font(13))
        x = place(share * reach, 0.0)[0]
        pen.text((min(x, right - 40), low + 6), f"{share * reach:.1%}", fill=_PALE, font=_font(13))
    if curve.budget is not None:
        x = place(curve.budget, 0.0)[0]
        pen.line((x, high, x, low), fill=_PALE, width=1)
        pen.text((x + 6, high), "budget", fill=_PALE, font=_font(13))
    pen.line([place(*point) for point in way], fill=_FAINT, width=2, joint="curve")
    pen.line([place(*point) for point in line], fill=_NEUTRAL, width=3, joint="curve")
    said = "pale line: the part of it that is straight way to the anchor"
    pen.text((left, low + 6 + _ROW), said, fill=_PALE, font=_font(13))
    x, y = place(*chosen)
    pen.ellipse((x - 6, y - 6, x + 6, y + 6), fill=_CHOSEN)
    words = f"this edit: {chosen[1]:.0%} left, drift {chosen[0]:.1%}"
    pen.text((x + 12, y - 20), words, fill=_INK, font=_font(13))


def picture_grid(rows: Sequence[tuple[str, Sequence[Pixels]]]) -> Pixels:
    """Rows of pictures of one size, each row under its title."""
    from PIL import Image, ImageDraw

    high, wide = rows[0][1][0].shape[:2]
    columns = max(len(parts) for _, parts in rows)
    size = (columns * (wide + _GAP) + _GAP, len(rows) * (high + _ROW + _GAP))
    picture = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(picture)
    for number, (title, parts) in enumerate(rows):
        top = number * (high + _ROW + _GAP)
        pen.text((_GAP, top + 5), _short(title, size[0] // 7), fill=_INK, font=_font(13))
        for column, part in enumerate(parts):
            picture.paste(Image.fromarray(part), (_GAP + column * (wide + _GAP), top + _ROW))
    return np.asarray(picture)


def _draw_panel(pen: Any, panel: Panel, top: int) -> int:
    pen.text((_MARGIN, top), panel.title, fill=_INK, font=_font(16))
    top += _ROW
    length = _WIDTH - _LABEL - _MARGIN - 220
    for bar in panel.bars:
        pen.text((_MARGIN, top + 5), _short(bar.label, 34), fill=_INK, font=_font(13))
        pen.rectangle((_LABEL, top + 4, _LABEL + length, top + _ROW - 5), fill=_GRID)
        for value, colour in _parts(bar):
            reach = round(length * min(1.0, max(0.0, value / panel.full)))
            if reach:
                pen.rectangle((_LABEL, top + 4, _LABEL + reach, top + _ROW - 5), fill=colour)
        pen.text((_LABEL + length + 10, top + 5), _short(bar.note, 32), fill=_PALE, font=_font(13))
        top += _ROW
    return top + _ROW


def _parts(bar: Bar) -> list[tuple[float, tuple[int, int, int]]]:
    """What is drawn of a bar, the lowest first."""
    if bar.strong is None:
        return [(bar.value, bar.colour)]
    red, green, blue = (
        round(0.35 * part + 0.65 * ground) for part, ground in zip(bar.colour, _GRID, strict=True)
    )
    return [(bar.value, (red, green, blue)), (bar.strong, bar.colour)]


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _font(size: int) -> Any:
    """Pillow's own font; before version 10.1 it comes in one size."""
    from PIL import ImageFont

    try:
        return ImageFont.load_default(size)
    except TypeError:
        return ImageFont.load_default()
