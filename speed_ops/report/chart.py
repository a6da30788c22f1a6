"""A certificate or a forecast as one picture, drawn with Pillow alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..certificate.certificate import ERASED_BELOW, GROUPS, PLACES, STANDS_ABOVE, Certificate, verdict_in_words
from ..certificate.forecast import Forecast

Pixels = NDArray[np.uint8]
"""Height x width x 3."""
_WIDTH = 900
_ROW = 26
_LABEL = 250
_MARGIN = 24
_SHOWN = 20
_INK, _PALE, _GRID = (32, 36, 44), (120, 128, 140), (226, 230, 236)
_GOOD, _MIDDLING, _BAD, _NEUTRAL = (38, 139, 96), (214, 158, 46), (197, 48, 48), (66, 114, 196)


@dataclass(frozen=True)
class Bar:
    """One bar of a panel."""

    label: str
    value: float
    colour: tuple[int, int, int]
    note: str


@dataclass(frozen=True)
class Panel:
    """A title and bars on a scale from 0 to `full`."""

    title: str
    bars: tuple[Bar, ...]
    full: float


def certificate_chart(certificate: Certificate) -> Pixels:
    """How much of each concept is left in unseen prompts, and how far the kept names moved."""
    return draw([_concepts(certificate), _drift(certificate)])


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
        colour = _GOOD if left <= ERASED_BELOW else _MIDDLING if left < STANDS_ABOVE else _BAD
        bars.append(Bar(one.name, left, colour, f"{left:.0%} left, {verdict_in_words(one.verdict)}"))
    title = "Concepts: how much is left in prompts not used to make the edit (0 = has become the anchor)"
    return Panel(title, tuple(bars), 1.0)


def _drift(certificate: Certificate) -> Panel:
    bars = []
    for part in certificate.drift:
        label = f"{GROUPS[part.group]}, {PLACES[part.where]} ({part.names})"
        bars.append(Bar(label, part.median, _NEUTRAL, f"median {part.median:.1%}, maximum {part.maximum:.1%}"))
        bars += [Bar(f"    {name}", value, _PALE, f"{value:.1%}") for name, value in part.worst[:3]]
    full = max([bar.value for bar in bars], default=0.0)
    return Panel("Drift: how far the kept names moved", tuple(bars[:_SHOWN]), max(full, 0.05))


def draw(panels: Sequence[Panel]) -> Pixels:
    """The panels below each other."""
    from PIL import Image, ImageDraw

    height = _MARGIN + sum((len(panel.bars) + 2) * _ROW for panel in panels)
    picture = Image.new("RGB", (_WIDTH, height), "white")
    pen = ImageDraw.Draw(picture)
    top = _MARGIN
    for panel in panels:
        top = _draw_panel(pen, panel, top)
    return np.array(picture)


def _draw_panel(pen: Any, panel: Panel, top: int) -> int:
    pen.text((_MARGIN, top), panel.title, fill=_INK, font=_font(16))
    top += _ROW
    length = _WIDTH - _LABEL - _MARGIN - 220
    for bar in panel.bars:
        pen.text((_MARGIN, top + 5), _short(bar.label, 34), fill=_INK, font=_font(13))
        pen.rectangle((_LABEL, top + 4, _LABEL + length, top + _ROW - 5), fill=_GRID)
        reach = round(length * min(1.0, max(0.0, bar.value / panel.full)))
        if reach:
            pen.rectangle((_LABEL, top + 4, _LABEL + reach, top + _ROW - 5), fill=bar.colour)
        pen.text((_LABEL + length + 10, top + 5), _short(bar.note, 32), fill=_PALE, font=_font(13))
        top += _ROW
    return top + _ROW


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _font(size: int) -> Any:
    """Pillow's own font; before version 10.1 it comes in one size."""
    from PIL import ImageFont

    try:
        return ImageFont.load_default(size)
    except TypeError:
        return ImageFont.load_default()
