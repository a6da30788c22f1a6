"""The font of charts. It has every built-in name; for other scripts, a font of this machine."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

_OURS = Path(__file__).with_name("chart_font.ttf")
_OTHERS = (
    *("NotoSansCJK-Regular.ttc", "NotoSans-Regular.ttf", "msyh.ttc", "meiryo.ttc"),
    *("PingFang.ttc", "Arial Unicode.ttf", "DejaVuSans.ttf"),
)


def font_for(text: str, size: int) -> Any:
    """Our font, or the first one of this machine that has every character of a text."""
    ours = _load(str(_OURS), size)
    if not missing(text, ours):
        return ours
    fonts = (_load(name, size) for name in _OTHERS)
    return next((font for font in fonts if font is not None and not missing(text, font)), ours)


def missing(text: str, font: Any) -> set[str]:
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
