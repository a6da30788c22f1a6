"""A report, a forecast or a comparison as one image, made with Pillow alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..certificate.certificate import Certificate
from ..certificate.forecast import Forecast
from ..certificate.summary import GROUPS, LEVEL_WORDS, PLACES, level_of
from ..certificate.verdicts import verdict_in_words
from ..inputs import INPUT_TITLES
from ..name_probe import NameReport
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
_SCORE_REACH = 2.0
"""Scores up to here have bars of different length; the mark, 1, is in the middle."""
_INK, _PALE, _GRID = (32, 36, 44), (120, 128, 140), (226, 230, 236)
_NEUTRAL, _FAINT, _CHOSEN = (66, 114, 196), (150, 180, 226), (197, 48, 48)
_COLORS: dict[str, Color] = {
    "erased": (38, 139, 96),
    "weakened": (214, 158, 46),
    "stands": (197, 48, 48),
    "unproven": _PALE,
}

_FONT = Path(__file__).with_name("chart_font.ttf")
"""It has every built-in name; for other scripts, a font of this machine is used."""
_OTHER_FONTS = (
    *("NotoSansCJK-Regular.ttc", "NotoSansCJKsc-Regular.otf", "NotoSerifCJK-Regular.ttc"),
    *("wqy-microhei.ttc", "wqy-zenhei.ttc", "DroidSansFallbackFull.ttf", "ipag.ttf"),
    *("NanumGothic.ttf", "NotoSans-Regular.ttf", "DejaVuSans.ttf"),
    *("msyh.ttc", "meiryo.ttc", "YuGothM.ttc", "msgothic.ttc", "malgun.ttf", "simsun.ttc"),
    *("PingFang.ttc", "Hiragino Sans GB.ttc", "AppleSDGothicNeo.ttc", "Arial Unicode.ttf"),
)
"""Of Linux, Windows and macOS; Pillow looks where each system has its fonts."""
_NO_FONT = (
    "Codes such as \\u845b are letters that no font here has. Install one, such as Noto Sans CJK."
)


@dataclass(frozen=True)
class Bar:
    """One bar of a panel."""

    label: str
    value: float
    color: Color
    note: str


@dataclass(frozen=True)
class Panel:
    """A title and bars on a scale from 0 to `full`."""

    title: str
    bars: tuple[Bar, ...]
    full: float
    mark: float | None = None
    """A line across the bars."""


def certificate_chart(certificate: Certificate) -> Pixels:
    """The score of each concept, what else changed, and the trade-off."""
    panels = [_concepts(certificate, "Concepts"), _drift(certificate, "Other names")]
    for name, part in certificate.other_inputs.items():
        title = INPUT_TITLES[name]
        panels += [_concepts(part, f"{title}: concepts"), _drift(part, f"{title}: other names")]
    shown = [panel for panel in panels if panel.bars]
    return draw(shown, None if certificate.curve is None else trade_off(certificate.curve))


def forecast_chart(forecast: Forecast) -> Pixels:
    """The names that the bare edit would move most."""
    shifts = list(zip(forecast.names, forecast.shifts, strict=True))[:_SHOWN]
    full = max([shift for _, shift in shifts], default=0.0) or 1.0
    bars = tuple(Bar(name, shift, _NEUTRAL, f"{shift:.2f}") for name, shift in shifts)
    return draw([Panel("Most affected if nothing protected them", bars, full)])


def name_chart(report: NameReport) -> Pixels:
    """What a name adds, next to known and invented names."""
    color = _CHOSEN if report.responds else _PALE
    rows = [
        (report.name, report.size, color),
        (f"known names (median of {report.known.names:,})", report.known.size, _NEUTRAL),
        (f"invented names (median of {report.invented.names:,})", report.invented.size, _FAINT),
    ]
    sizes = tuple(Bar(label, size, color, f"{size:.2f}") for label, size, color in rows)
    ranks = tuple(
        Bar(label, group.percentile, color, f"{group.percentile:.0%}")
        for label, group in (
            ("invented names", report.invented),
            ("known names", report.known),
        )
    )
    closest = tuple(Bar(name, cosine, _NEUTRAL, f"{cosine:.2f}") for name, cosine in report.closest)
    panels = [
        Panel("How much the name changes what the model reads", sizes, max(b.value for b in sizes)),
        Panel(f"Share of names that add less than '{report.name}'", ranks, 1.0),
        Panel("Known names that add something alike", closest, 1.0),
    ]
    return draw(panels)


def _concepts(certificate: Certificate, title: str) -> Panel:
    ranked = sorted(
        certificate.concepts, key=lambda item: -(np.inf if item.score is None else item.score)
    )
    bars = tuple(
        Bar(item.name, item.score or 0.0, _COLORS[item.verdict], verdict_in_words(item.verdict))
        for item in ranked[:_SHOWN]
    )
    title = f"{title} (bars that end left of the line: erased)"
    return Panel(title, bars, _SCORE_REACH, 1.0)


def _drift(certificate: Certificate, title: str) -> Panel:
    bars = []
    for group in certificate.drift:
        label = f"{GROUPS[group.group]}, {PLACES[group.where]}"
        words = LEVEL_WORDS[level_of(group.mean)].partition(";")[0].partition(",")[0]
        bars.append(Bar(label, group.mean, _NEUTRAL, words))
        bars += [
            Bar(f"    {name}", drift, _PALE, f"{drift:.2f}") for name, drift in group.worst[:3]
        ]
    full = max([0.1, *(bar.value for bar in bars)])
    return Panel(f"{title}: side effects (mean, and most affected)", tuple(bars[:_SHOWN]), full)


def draw(panels: Sequence[Panel], plot: TradeOff | None = None) -> Pixels:
    """The panels below each other, and the trade-off below them."""
    from PIL import Image, ImageDraw

    labels = [bar.label for panel in panels for bar in panel.bars]
    unknown = any(missing_characters(label, font_for(label, 13)) for label in labels)
    height = _MARGIN + sum((len(panel.bars) + 2) * _ROW for panel in panels) + unknown * _ROW
    height += 0 if plot is None else _PLOT_HEIGHT + 3 * _ROW
    image = Image.new("RGB", (_WIDTH, height), "white")
    pen = ImageDraw.Draw(image)
    top = _MARGIN
    for panel in panels:
        top = _draw_panel(pen, panel, top)
    if plot is not None:
        _draw_trade_off(pen, plot, top)
    if unknown:
        _write(pen, (_MARGIN, height - _ROW), _NO_FONT, _PALE)
    return np.array(image)


def _draw_trade_off(pen: Any, plot: TradeOff, top: int) -> None:
    _write(pen, (_MARGIN, top), "Erasure and side effects", _INK, 16)
    left, right = _MARGIN + 50, _WIDTH - _MARGIN
    high, low = top + _ROW + 8, top + _ROW + _PLOT_HEIGHT

    def position(point: tuple[float, float]) -> tuple[float, float]:
        drift, share = point
        x = left + (right - left) * drift / plot.reach
        return x, low - (low - high) * min(1.0, share)

    for share in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        _, y = position((0.0, share))
        pen.line((left, y, right, y), fill=_GRID)
        _write(pen, (left - 10, y - 8), f"{share:g}", _PALE, right=True)
    for share, label in plot.ticks:
        x, _ = position((share * plot.reach, 0.0))
        pen.line((x, low, x, low + 4), fill=_PALE)
        _write(pen, (x, low + 8), label, _PALE, center=0 < share < 1, right=share == 1)
    if plot.shown_budget is not None:
        x, _ = position((plot.shown_budget, 0.0))
        pen.line((x, high, x, low), fill=_PALE, width=1)
        _write(pen, (x - 6, high + 4), "limit", _PALE, right=True)
    for line, color, width in ((plot.to_go, _FAINT, 2), (plot.left, _NEUTRAL, 3)):
        points = [position(point) for point in plot.visible(line)]
        pen.line(points, fill=color, width=width, joint="curve")
    x, y = position(plot.chosen)
    _write(pen, (x + 12, y - 24), "this edit", _INK, ground="white")
    pen.ellipse((x - 6, y - 6, x + 6, y + 6), fill=_CHOSEN)
    legend = (
        "Left to right: side effects. Upward: remaining (bold: as measured; pale: as images show)"
    )
    beyond = plot.budget is not None and plot.shown_budget is None
    legend += f". Limit: {plot.budget:g}" if beyond else ""
    _write(pen, (left, low + 8 + _ROW), legend, _PALE)


def picture_grid(rows: Sequence[tuple[str, Sequence[Pixels]]]) -> Pixels:
    """Rows of images of one size, each row under its title."""
    from PIL import Image, ImageDraw

    height, width = rows[0][1][0].shape[:2]
    columns = max(len(images) for _, images in rows)
    size = (columns * (width + _GAP) + _GAP, len(rows) * (height + _ROW + _GAP))
    grid = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(grid)
    for row, (title, images) in enumerate(rows):
        top = row * (height + _ROW + _GAP)
        _write(pen, (_GAP, top + 5), title, _INK, width=size[0] - 2 * _GAP)
        for column, pixels in enumerate(images):
            grid.paste(Image.fromarray(pixels), (_GAP + column * (width + _GAP), top + _ROW))
    return np.asarray(grid)


def _draw_panel(pen: Any, panel: Panel, top: int) -> int:
    _write(pen, (_MARGIN, top), panel.title, _INK, 16)
    top += _ROW
    length = _WIDTH - _LABEL - _MARGIN - 240

    def fill(share: float, color: Color) -> None:
        end = _LABEL + round(length * min(1.0, max(0.0, share)))
        if end > _LABEL:
            pen.rectangle((_LABEL, top + 4, end, top + _ROW - 5), fill=color)

    start = top
    for bar in panel.bars:
        _write(pen, (_MARGIN, top + 5), bar.label, _INK, width=_LABEL - _MARGIN - 10)
        fill(1.0, _GRID)
        fill(bar.value / panel.full, bar.color)
        _write(pen, (_LABEL + length + 10, top + 5), bar.note, _PALE, width=220)
        top += _ROW
    if panel.mark is not None:
        x = _LABEL + round(length * panel.mark / panel.full)
        pen.line((x, start, x, top - 1), fill=_INK, width=2)
    return top + _ROW


def _write(
    pen: Any,
    at: tuple[float, float],
    text: str,
    color: Color,
    size: int = 13,
    *,
    width: float = _WIDTH,
    right: bool = False,
    center: bool = False,
    ground: str = "",
) -> None:
    """One line of text.

    Args:
        pen: What writes.
        at: Its upper left corner.
        text: The line.
        color: Its color.
        size: Height of the font.
        width: Longer text is shortened to this.
        right: `at` is the upper right corner.
        center: `at` is the middle of the upper edge.
        ground: Color behind it, where it may cross lines.
    """
    text = " ".join(text.split()) if not text.startswith(" ") else "    " + " ".join(text.split())
    font = font_for(text, size)
    text = readable(text, font)
    if pen.textlength(text, font) > width:
        while text and pen.textlength(text + "…", font) > width:
            text = text[:-1]
        text += "…"
    length = pen.textlength(text, font)
    x, y = at[0] - length * (1 if right else 0.5 if center else 0), at[1]
    x = min(x, _WIDTH - _MARGIN - length) if ground else x
    if ground:
        pen.rectangle((x - 3, y, x + length + 3, y + size + 4), fill=ground)
    pen.text((x, y), text, fill=color, font=font)


def font_for(text: str, size: int) -> Any:
    """Our font, or the one of this machine that has more characters of a text."""
    ours = _load(str(_FONT), size)
    if not missing_characters(text, ours):
        return ours
    fonts = (_load(name, size) for name in _OTHER_FONTS)
    present = [ours, *(font for font in fonts if font is not None)]
    return min(present, key=lambda font: len(missing_characters(text, font)))


def readable(text: str, font: Any) -> str:
    """A text with codes in the place of the characters that a font shows as boxes."""
    for char in missing_characters(text, font):
        text = text.replace(char, char.encode("unicode_escape").decode())
    return text


def missing_characters(text: str, font: Any) -> set[str]:
    """The characters that a font shows as a box."""
    absent = bytes(font.getmask("\uffff"))
    return {
        char for char in set(text) if char.isprintable() and bytes(font.getmask(char)) == absent
    }


@cache
def _load(name: str, size: int) -> Any:
    from PIL import ImageFont

    try:
        return ImageFont.truetype(name, size)
    except OSError:
        return None
