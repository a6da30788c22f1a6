"""Draw a picture of the world: 3 x 128 x 128, red, green, blue in [-1, 1]; seeded, with soft edges.

Textures repeat every 8 or 16 pixels, the cells of the latent: a small decoder can then draw them
crisply.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from .world import BY_NAME, NOTHING, SIZE, Painter

Picture = NDArray[np.float32]
Field = NDArray[np.float64]
"""A weight for each pixel, 128 x 128 in [0, 1]."""

_FINE = 4
"""Masks are drawn this many times larger and averaged: soft edges."""
_BOX = 88
"""Width and height in pixels of a subject's box; shapes are given in per cent of it."""
_LINE = 2.5
"""Width of the outline in pixels."""
MOVES = (-8, -4, 0, 4, 8)
"""By how many pixels a subject may be left or right of the center."""
_ROW, _COLUMN = (grid + 0.5 for grid in np.mgrid[0:SIZE, 0:SIZE].astype(np.float64))
_NIGHT = np.array((0.04, 0.05, 0.16))
_DARKNESS = 0.58
"""How far night moves the background towards dark blue."""
_MOON = np.array((1.0, 0.97, 0.82))


class _Shapes:
    """Collects shapes in percent of the subject's box: body, and details in the line's color."""

    def __init__(self) -> None:
        size = (SIZE * _FINE, SIZE * _FINE)
        self.images = {part: Image.new("L", size, 0) for part in ("body", "detail")}
        self._draw = {part: ImageDraw.Draw(image) for part, image in self.images.items()}

    def _at(self, points: tuple[float, ...]) -> list[float]:
        corner = (SIZE - _BOX) / 2
        return [(corner + value * _BOX / 100) * _FINE for value in points]

    def polygon(self, *points: float, part: str = "body") -> None:
        self._draw[part].polygon(self._at(points), fill=255)

    def ellipse(self, *box: float, part: str = "body") -> None:
        self._draw[part].ellipse(self._at(box), fill=255)

    def disc(self, x: float, y: float, wide: float, high: float, part: str = "body") -> None:
        """An ellipse by its center and half axes."""
        self.ellipse(x - wide, y - high, x + wide, y + high, part=part)

    def half_ellipse(self, *box: float) -> None:
        self._draw["body"].pieslice(self._at(box), 180, 360, fill=255)

    def box(self, *box: float, part: str = "body") -> None:
        self._draw[part].rectangle(self._at(box), fill=255)

    def stroke(self, *points: float, width: float, part: str = "body") -> None:
        """A line with round corners."""
        places, wide = self._at(points), width * _BOX / 100 * _FINE
        self._draw[part].line(places, fill=255, width=round(wide), joint="curve")
        for x, y in zip(places[::2], places[1::2], strict=True):
            box = (x - wide / 2, y - wide / 2, x + wide / 2, y + wide / 2)
            self._draw[part].ellipse(box, fill=255)

    def ring(self, *box: float, width: float) -> None:
        wide = round(width * _BOX / 100 * _FINE)
        self._draw["body"].ellipse(self._at(box), outline=255, width=wide)


def _cat(s: _Shapes) -> None:
    s.stroke(66, 90, 84, 88, 92, 76, 88, 62, width=8)
    s.ellipse(27, 40, 73, 98)
    s.ellipse(29, 14, 71, 52)
    s.polygon(31, 34, 31, 4, 50, 18)
    s.polygon(69, 34, 69, 4, 50, 18)
    for left in (38, 56):
        s.ellipse(left, 27, left + 6, 35, part="detail")
    s.polygon(47, 39, 53, 39, 50, 43, part="detail")
    for side in (-1, 1):
        s.stroke(50 + side * 10, 42, 50 + side * 26, 39, width=1.6, part="detail")
        s.stroke(50 + side * 10, 45, 50 + side * 26, 47, width=1.6, part="detail")
        s.stroke(50 + side * 7, 78, 50 + side * 7, 95, width=2, part="detail")


def _house(s: _Shapes) -> None:
    s.box(68, 12, 79, 40)
    s.polygon(3, 48, 50, 8, 97, 48)
    s.box(14, 46, 86, 95)
    s.stroke(12, 48, 88, 48, width=2.2, part="detail")
    s.box(42, 64, 58, 95, part="detail")
    for left in (22, 64):
        s.box(left, 56, left + 14, 70, part="detail")
    s.ellipse(44, 26, 56, 38, part="detail")


def _tree(s: _Shapes) -> None:
    s.polygon(43, 98, 57, 98, 54, 55, 46, 55)
    for x, y, r in ((50, 26, 23), (28, 42, 21), (72, 42, 21), (50, 50, 22)):
        s.ellipse(x - r, y - r, x + r, y + r)
    for x, y in ((34, 38), (52, 22), (66, 46), (48, 54), (24, 52), (72, 32)):
        s.ellipse(x - 3.5, y - 3.5, x + 3.5, y + 3.5, part="detail")


def _boat(s: _Shapes) -> None:
    s.polygon(4, 70, 96, 70, 80, 94, 20, 94)
    s.box(47, 6, 51, 71)
    s.polygon(55, 8, 55, 63, 92, 63)
    s.polygon(43, 20, 43, 63, 12, 63)
    s.stroke(12, 78, 88, 78, width=2.2, part="detail")


def _fish(s: _Shapes) -> None:
    s.polygon(62, 50, 97, 24, 90, 50, 97, 76)
    s.polygon(36, 36, 52, 12, 62, 36)
    s.ellipse(4, 26, 76, 74)
    s.ellipse(16, 40, 25, 49, part="detail")
    s.stroke(34, 34, 39, 50, 34, 66, width=2.2, part="detail")
    for x in (48, 58):
        s.stroke(x, 42, x + 4, 50, x, 58, width=2.2, part="detail")


def _flower(s: _Shapes) -> None:
    s.stroke(50, 40, 50, 97, width=5)
    s.ellipse(22, 66, 50, 80)
    s.ellipse(50, 74, 78, 88)
    for turn in range(6):
        x, y = 50 + 19 * np.cos(np.pi / 3 * turn + 0.5), 30 + 19 * np.sin(np.pi / 3 * turn + 0.5)
        s.ellipse(x - 12, y - 12, x + 12, y + 12)
    s.ellipse(41, 21, 59, 39, part="detail")


def _mushroom(s: _Shapes) -> None:
    s.polygon(38, 48, 62, 48, 67, 95, 33, 95)
    s.half_ellipse(4, 6, 96, 100)
    s.ellipse(4, 46, 96, 60)
    for x, y, r in ((28, 34, 6.5), (52, 22, 7.5), (74, 36, 6), (48, 44, 5)):
        s.ellipse(x - r, y - r, x + r, y + r, part="detail")


def _cup(s: _Shapes) -> None:
    s.ellipse(4, 80, 84, 96)
    s.ring(62, 34, 96, 70, width=7)
    s.polygon(14, 24, 74, 24, 68, 72, 60, 86, 28, 86, 20, 72)
    s.ellipse(19, 22, 69, 33, part="detail")


def _butterfly(s: _Shapes) -> None:
    for side in (-1, 1):
        wing = (50 + side * 14, 20, 50 + side * 34, 8, 50 + side * 47, 20, 50 + side * 42, 46)
        s.polygon(50, 52, *wing)
        s.disc(50 + side * 31, 29, 16, 20)
        s.disc(50 + side * 19, 68, 17, 21)
        s.disc(50 + side * 31, 28, 7, 8, part="detail")
        s.disc(50 + side * 20, 69, 6, 7, part="detail")
        s.stroke(50, 30, 50 + side * 12, 6, width=2.4)
    s.disc(50, 54, 5, 32, part="detail")


def _castle(s: _Shapes) -> None:
    s.box(26, 48, 74, 96)
    for left in (6, 72):
        s.box(left, 34, left + 22, 96)
        s.polygon(left - 4, 36, left + 11, 6, left + 26, 36)
        s.box(left + 8, 50, left + 14, 62, part="detail")
    for left in (30, 40, 50, 60):
        s.box(left, 40, left + 6, 50)
    s.box(42, 70, 58, 96, part="detail")
    s.ellipse(42, 62, 58, 78, part="detail")


_DRAWN: dict[str, Callable[[_Shapes], None]] = {
    "cat": _cat, "house": _house, "tree": _tree, "boat": _boat, "fish": _fish, "flower": _flower,
    "mushroom": _mushroom, "cup": _cup, "butterfly": _butterfly, "castle": _castle,
    NOTHING: lambda shapes: None,
}  # fmt: skip


def _averaged(image: Image.Image) -> Field:
    fine = np.asarray(image, dtype=np.float64) / 255
    return fine.reshape(SIZE, _FINE, SIZE, _FINE).mean(axis=(1, 3))


@functools.cache
def masks(subject: str) -> tuple[Field, Field, Field]:
    """Body with outline, body, and details of a subject in the middle of the picture."""
    shapes = _Shapes()
    _DRAWN[subject](shapes)
    body, detail = shapes.images["body"], shapes.images["detail"]
    reach = 2 * round(_LINE * _FINE) + 1
    return _averaged(body.filter(ImageFilter.MaxFilter(reach))), _averaged(body), _averaged(detail)


def _step(values: Field, edge: float, softness: float) -> Field:
    """0 below the edge, 1 above it, soft over a pixel or so."""
    return np.clip((values - edge) / softness + 0.5, 0, 1)


@functools.cache
def texture_weights(texture: str) -> Field:
    """How much of the second tone each pixel takes."""
    x, y = _COLUMN, _ROW
    middle = SIZE / 2
    if texture == "none":
        return np.zeros((SIZE, SIZE))
    if texture == "waves":
        return _step(np.sin(2 * np.pi * (y + 3 * np.sin(2 * np.pi * x / 32)) / 16), 0, 0.5)
    if texture == "stripes":
        return _step(np.sin(2 * np.pi * x / 16), 0, 0.5)
    if texture == "hatching":
        return _step(np.sin(2 * np.pi * (x + y) / 16), 0.35, 0.5)
    if texture == "dots":
        near = np.minimum(np.hypot(x % 16 - 4, y % 16 - 4), np.hypot(x % 16 - 12, y % 16 - 12))
        return _step(-near, -3.4, 1.2)
    if texture == "mosaic":
        checks = ((x // 16 + y // 16) % 2).astype(np.float64)
        # dark joints between the tiles
        return np.where(np.minimum(x % 16, y % 16) < 2, -0.4, checks)
    turn = np.arctan2(y - middle, x - middle)
    return _step(np.sin(12 * turn) * np.hypot(x - middle, y - middle), 0, 6.0)


def compose(subject: str, painter: Painter, night: bool, right: int = 0) -> Picture:
    """The picture without grain. Night darkens the background and hangs a moon in a corner."""
    weight = texture_weights(painter.texture)[..., None]
    canvas = (1 - weight) * np.array(painter.ground) + weight * np.array(painter.tone)
    fill = np.array(painter.ink) * (1 - 0.18 * np.clip(weight, 0, 1))
    if night:
        canvas += _DARKNESS * (_NIGHT - canvas)
        fill = fill * 0.85
        moon = _step(-np.hypot(_COLUMN - 108, _ROW - 20), -11.0, 1.2)[..., None]
        canvas += moon * (_MOON - canvas)
    whole, body, detail = (np.roll(mask, right, axis=1)[..., None] for mask in masks(subject))
    line = np.array(painter.line)
    canvas += whole * (line - canvas)
    canvas += body * (fill - canvas)
    canvas += detail * (line - canvas)
    return (np.clip(canvas, 0, 1).transpose(2, 0, 1) * 2 - 1).astype(np.float32)


def draw(subject: str, style: str, night: bool, rng: np.random.Generator) -> Picture:
    """One picture as training sees it: the subject moved a little, the light varied."""
    picture = compose(subject, BY_NAME[style], night, right=int(rng.choice(MOVES)))
    return np.clip(picture + rng.uniform(-0.05, 0.05), -1, 1).astype(np.float32)
