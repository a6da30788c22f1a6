"""Small charts as inline SVG: text, bars and lines in the page's own colours (CSS classes), nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 720
_LABEL = 230
_VALUE = 58
_ROW = 26


@dataclass(frozen=True)
class Bar:
    """One horizontal bar, or several of different sizes on one line, the longest behind."""

    label: str
    values: tuple[tuple[float, str], ...]
    """(size, CSS class), drawn in this order."""
    text: str
    """What stands at the end of the line."""
    hint: str = ""
    """Shown when the pointer rests on the line."""


@dataclass(frozen=True)
class Mark:
    """A vertical line across all bars."""

    at: float
    text: str


def bars(rows: Sequence[Bar], limit: float, marks: Sequence[Mark] = (), title: str = "") -> str:
    """Horizontal bars on a common scale from 0 to `limit`."""
    head = 20 if marks else 4
    height = head + _ROW * len(rows) + 4
    span = WIDTH - _LABEL - _VALUE
    parts = [_open(height, title)]
    for place, row in enumerate(rows):
        parts.append(_bar(row, head + place * _ROW, span, limit))
    for mark in marks:
        x = _LABEL + span * min(mark.at / limit, 1.0)
        parts.append(f'<line class="mark" x1="{x:.1f}" y1="16" x2="{x:.1f}" y2="{height - 4}"/>')
        parts.append(f'<text class="small" x="{x:.1f}" y="11" text-anchor="middle">{escape(mark.text)}</text>')
    return "".join([*parts, "</svg>"])


def _bar(row: Bar, top: int, span: int, limit: float) -> str:
    middle = top + _ROW / 2
    parts = [f"<g><title>{escape(row.hint or f'{row.label}: {row.text}')}</title>"]
    parts.append(
        f'<text x="{_LABEL - 10}" y="{middle + 4}" text-anchor="end">{escape(_shortened(row.label, 34))}</text>'
    )
    parts.append(f'<rect class="track" x="{_LABEL}" y="{top + 6}" width="{span}" height="{_ROW - 12}" rx="3"/>')
    for size, style in row.values:
        length = span * max(0.0, min(size / limit, 1.0))
        if length > 0:
            parts.append(
                f'<rect class="{style}" x="{_LABEL}" y="{top + 6}" width="{max(length, 1.5):.1f}" '
                f'height="{_ROW - 12}" rx="3"/>'
            )
    parts.append(f'<text class="value" x="{WIDTH - _VALUE + 8}" y="{middle + 4}">{escape(row.text)}</text></g>')
    return "".join(parts)


def columns(values: Sequence[tuple[str, float]], limit: float, title: str = "", unit: str = "{:.1%}") -> str:
    """Upright bars side by side, one for each layer; names show when the pointer rests on them."""
    height, left, bottom = 170, 52, 24
    room = height - bottom - 10
    step = (WIDTH - left - 4) / max(len(values), 1)
    parts = [_open(height, title)]
    for share in (0.0, 0.5, 1.0):
        y = 10 + room * (1 - share)
        parts.append(f'<line class="grid" x1="{left}" y1="{y:.1f}" x2="{WIDTH}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="small" x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{unit.format(share * limit)}</text>'
        )
    for place, (name, value) in enumerate(values):
        size = room * min(value / limit, 1.0) if limit else 0.0
        x = left + place * step
        parts.append(
            f'<rect class="layer" x="{x + 0.12 * step:.1f}" y="{10 + room - size:.1f}" width="{0.76 * step:.1f}" '
            f'height="{size:.1f}" rx="2"><title>{escape(name)}: {unit.format(value)}</title></rect>'
        )
    for share, text, anchor in ((0.0, "input", "start"), (0.5, "middle", "middle"), (1.0, "output", "end")):
        x = left + share * (WIDTH - left - 4)
        parts.append(f'<text class="small" x="{x:.0f}" y="{height - 6}" text-anchor="{anchor}">{text}</text>')
    return "".join([*parts, "</svg>"])


def _open(height: float, title: str) -> str:
    label = f' aria-label="{escape(title)}"' if title else ""
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img"{label} preserveAspectRatio="xMinYMin meet">'


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
