"""A certificate, a forecast or a comparison as one picture, drawn with Pillow alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..certificate.certificate import Certificate, verdict_in_words
from ..certificate.forecast import Forecast
from ..certificate.summary import GROUPS, PLACES
from ..inputs import INPUT_TITLES
from .trade_off import TradeOff, trade_off

Pixels = NDArray[np.uint8]
"""Height x width x 3."""
Color = tuple[int, int, int]
_WIDTH = 900
_ROW = 26
_LABEL = 250
_MARGIN = 24
_GAP = 4
_PLOT_HEIGHT = 260
_SHOWN = 20
_INK, _PALE, _GRID = (32, 36, 44), (120, 128, 140), (226, 230, 236)
_NEUTRAL, _FAINT, _CHOSEN = (66, 114, 196), (150, 180, 226), (197, 48, 48)
_COLORS: dict[str, Color] = {
    "erased": (38, 139, 96),
    "weakened": (214, 158, 46),
    "stands": (197, 48, 48),
    "unproven": _PALE,
}


@dataclass(frozen=True)
class Bar:
    """One bar of a panel."""

    label: str
    value: float
    color: Color
    note: str
    strong: float | None = None
    """Up to here in full color, pale from there on; all of it if None."""


@dataclass(frozen=True)
class Panel:
    """A title and bars on a scale from 0 to `full`."""

    title: str
    bars: tuple[Bar, ...]
    full: float


def certificate_chart(certificate: Certificate) -> Pixels:
    """What is left of each concept in unseen prompts, how far the kept names moved, and the
    trade-off.
    """
    panels = [
        _concepts(
            certificate,
            "Concepts: how much is left in unseen prompts (strong: straight way to the anchor;"
            " pale: went astray)",
        ),
        _drift(certificate, "Drift: how far the kept names moved"),
    ]
    for name, part in certificate.other_inputs.items():
        title = INPUT_TITLES[name]
        panels.append(_concepts(part, f"{title}: how much of each concept is left there"))
        panels.append(_drift(part, f"{title}: how far the kept names moved there"))
    return draw(panels, None if certificate.curve is None else trade_off(certificate.curve))


def forecast_chart(forecast: Forecast) -> Pixels:
    """The names that the bare edit would move most."""
    shifts = list(zip(forecast.names, forecast.shifts, strict=True))[:_SHOWN]
    full = max([shift for _, shift in shifts], default=0.0) or 1.0
    bars = tuple(Bar(name, shift, _NEUTRAL, f"{shift:.1%}") for name, shift in shifts)
    return draw([Panel("Predicted shift of the names if nothing protected them", bars, full)])


def _concepts(certificate: Certificate, title: str) -> Panel:
    bars = []
    for concept in certificate.concepts:
        left = concept.left
        note = f"{left:.0%} left, {verdict_in_words(concept.verdict)}"
        bars.append(Bar(concept.name, left, _COLORS[concept.verdict], note, concept.probe_to_go))
    bars.sort(key=lambda bar: -bar.value)
    return Panel(title, tuple(bars[:_SHOWN]), 1.0)


def _drift(certificate: Certificate, title: str) -> Panel:
    bars = []
    for group in certificate.drift:
        label = f"{GROUPS[group.group]}, {PLACES[group.where]} ({group.names})"
        note = f"median {group.median:.1%}, maximum {group.maximum:.1%}"
        bars.append(Bar(label, group.median, _NEUTRAL, note))
        bars += [
            Bar(f"    {name}", drift, _PALE, f"{drift:.1%}") for name, drift in group.worst[:3]
        ]
    full = max([0.05, *(bar.value for bar in bars)])
    return Panel(title, tuple(bars[:_SHOWN]), full)


def draw(panels: Sequence[Panel], plot: TradeOff | None = None) -> Pixels:
    """The panels below each other, and the trade-off below them."""
    from PIL import Image, ImageDraw

    height = _MARGIN + sum((len(panel.bars) + 2) * _ROW for panel in panels)
    height += 0 if plot is None else _PLOT_HEIGHT + 3 * _ROW
    picture = Image.new("RGB", (_WIDTH, height), "white")
    pen = ImageDraw.Draw(picture)
    top = _MARGIN
    for panel in panels:
        top = _draw_panel(pen, panel, top)
    if plot is not None:
        _draw_trade_off(pen, plot, top)
    return np.array(picture)


def _draw_trade_off(pen: Any, plot: TradeOff, top: int) -> None:
    title = (
        "Trade-off: what is left of the concepts (upwards) against the drift of other names (to the"
        " right)"
    )
    pen.text((_MARGIN, top), title, fill=_INK, font=_font(16))
    left, right = _MARGIN + 50, _WIDTH - _MARGIN
    high, low = top + _ROW + 8, top + _ROW + _PLOT_HEIGHT

    def position(point: tuple[float, float]) -> tuple[float, float]:
        drift, share = point
        x = left + (right - left) * drift / plot.reach
        return x, low - (low - high) * min(1.0, share)

    for share, label in plot.ticks:
        x, y = position((share * plot.reach, share))
        pen.line((left, y, right, y), fill=_GRID)
        pen.text((_MARGIN, y - 8), f"{share:.0%}", fill=_PALE, font=_font(13))
        pen.text((min(x, right - 40), low + 6), label, fill=_PALE, font=_font(13))
    if plot.budget is not None:
        x, _ = position((plot.budget, 0.0))
        pen.line((x, high, x, low), fill=_PALE, width=1)
        pen.text((x + 6, high), "budget", fill=_PALE, font=_font(13))
    for line, color, width in ((plot.to_go, _FAINT, 2), (plot.left, _NEUTRAL, 3)):
        points = [position(point) for point in plot.visible(line)]
        pen.line(points, fill=color, width=width, joint="curve")
    legend = "pale line: the part of it that is straight way to the anchor"
    pen.text((left, low + 6 + _ROW), legend, fill=_PALE, font=_font(13))
    x, y = position(plot.chosen)
    pen.ellipse((x - 6, y - 6, x + 6, y + 6), fill=_CHOSEN)
    pen.text((x + 12, y - 20), plot.caption, fill=_INK, font=_font(13))


def picture_grid(rows: Sequence[tuple[str, Sequence[Pixels]]]) -> Pixels:
    """Rows of pictures of one size, each row under its title."""
    from PIL import Image, ImageDraw

    height, width = rows[0][1][0].shape[:2]
    columns = max(len(pictures) for _, pictures in rows)
    size = (columns * (width + _GAP) + _GAP, len(rows) * (height + _ROW + _GAP))
    grid = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(grid)
    for row, (title, pictures) in enumerate(rows):
        top = row * (height + _ROW + _GAP)
        pen.text((_GAP, top + 5), _shortened(title, size[0] // 7), fill=_INK, font=_font(13))
        for column, pixels in enumerate(pictures):
            grid.paste(Image.fromarray(pixels), (_GAP + column * (width + _GAP), top + _ROW))
    return np.asarray(grid)


def _draw_panel(pen: Any, panel: Panel, top: int) -> int:
    pen.text((_MARGIN, top), panel.title, fill=_INK, font=_font(16))
    top += _ROW
    length = _WIDTH - _LABEL - _MARGIN - 220

    def fill(share: float, color: Color) -> None:
        end = _LABEL + round(length * min(1.0, max(0.0, share)))
        if end > _LABEL:
            pen.rectangle((_LABEL, top + 4, end, top + _ROW - 5), fill=color)

    for bar in panel.bars:
        pen.text((_MARGIN, top + 5), _shortened(bar.label, 34), fill=_INK, font=_font(13))
        fill(1.0, _GRID)
        if bar.strong is None:
            fill(bar.value / panel.full, bar.color)
        else:
            fill(bar.value / panel.full, _pale(bar.color))
            fill(bar.strong / panel.full, bar.color)
        note = _shortened(bar.note, 32)
        pen.text((_LABEL + length + 10, top + 5), note, fill=_PALE, font=_font(13))
        top += _ROW
    return top + _ROW


def _pale(color: Color) -> Color:
    red, green, blue = (
        round(0.35 * channel + 0.65 * ground) for channel, ground in zip(color, _GRID, strict=True)
    )
    return red, green, blue


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _font(size: int) -> Any:
    """Pillow's own font; before version 10.1 it comes in one size."""
    from PIL import ImageFont

    try:
        return ImageFont.load_default(size)
    except TypeError:
        return ImageFont.load_default()
