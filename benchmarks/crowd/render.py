"""Pictures of the 40-painter test set, 32 x 32 pixels: drawn four times as large and averaged."""

from __future__ import annotations

from functools import cache

import numpy as np

from .world import BY_NAME, COSTUMES, FIGURE_BY_NAME, HAIR, PALETTES, SKINS, Color, Painter

SIZE = 32
_FINE = 4
_SIDE = SIZE * _FINE
SHIFTS = 2
"""A subject may be shifted by this many pixels."""

Mask = np.ndarray
"""Cover of each pixel, (32, 32) in [0, 1]; while it is drawn, booleans of (128, 128)."""
Picture = np.ndarray
"""Colors (3, 32, 32) in [-1, 1]."""

_y, _x = (np.mgrid[0:_SIDE, 0:_SIDE] + 0.5) / _FINE  # in pixels


def _disc(x: float, y: float, across: float, down: float | None = None) -> Mask:
    return ((_x - x) / across) ** 2 + ((_y - y) / (down or across)) ** 2 <= 1


def _box(left: float, top: float, right: float, bottom: float) -> Mask:
    return (_x >= left) & (_x <= right) & (_y >= top) & (_y <= bottom)


def _polygon(*corners: tuple[float, float]) -> Mask:
    """Inside of a polygon, by counting crossings."""
    inside = np.zeros((_SIDE, _SIDE), dtype=bool)
    for (x0, y0), (x1, y1) in zip(corners, (*corners[1:], corners[0]), strict=True):
        if y0 != y1:
            crosses = (_y > min(y0, y1)) & (_y <= max(y0, y1))
            inside ^= crosses & (_x < x0 + (_y - y0) * (x1 - x0) / (y1 - y0))
    return inside


def _petals(count: int, reach: float, size: float) -> Mask:
    angles = 2 * np.pi * np.arange(count) / count - np.pi / 2
    discs = [_disc(16 + reach * np.cos(a), 16 + reach * np.sin(a), size) for a in angles]
    return np.logical_or.reduce(discs)


def _star() -> Mask:
    angles = np.pi * np.arange(10) / 5 - np.pi / 2
    reach = [11.0 if i % 2 == 0 else 4.6 for i in range(10)]
    tips = zip(reach, angles, strict=True)
    return _polygon(*((16 + r * np.cos(a), 16.5 + r * np.sin(a)) for r, a in tips))


def _shape(subject: str) -> Mask:
    if subject == "cup":
        bowl = _disc(16, 10, 9, 12) & (_y >= 10)
        return bowl | _box(14.8, 20, 17.2, 25) | _box(11, 24, 21, 26)
    if subject == "mug":
        handle = _disc(22.5, 16, 5.2, 5.5) & ~_disc(22.5, 16, 2.6, 2.9)
        return _box(7, 8, 21, 25) | handle
    if subject == "bucket":
        handle = _disc(16, 12, 9.5, 8) & ~_disc(16, 12, 7.6, 6) & (_y < 12)
        return _polygon((6, 12), (26, 12), (22.5, 27), (9.5, 27)) | handle
    if subject == "cat":
        ears = _polygon((7, 15), (8, 4), (15, 10)) | _polygon((25, 15), (24, 4), (17, 10))
        eyes = _disc(12.3, 16, 1.5, 1.9) | _disc(19.7, 16, 1.5, 1.9)
        return (_disc(16, 17, 10, 9) | ears) & ~eyes
    if subject == "fox":
        ears = _polygon((4, 15), (5, 3), (14, 10)) | _polygon((28, 15), (27, 3), (18, 10))
        eyes = _disc(12, 15, 1.3) | _disc(20, 15, 1.3)
        face = _polygon((4, 12), (28, 12), (16, 28.5)) | _polygon((6, 12), (16, 8), (26, 12))
        return (face | ears) & ~eyes
    if subject == "dog":
        ears = _disc(6, 17, 3.2, 8) | _disc(26, 17, 3.2, 8)
        face = _disc(12.5, 14, 1.4) | _disc(19.5, 14, 1.4) | _disc(16, 21, 2.6, 1.7)
        return (_disc(16, 16.5, 8.5, 10) | ears) & ~face
    if subject == "house":
        roof, door = _polygon((4, 15), (16, 5), (28, 15)), _box(13.5, 20, 18.5, 27)
        return (roof | _box(7, 15, 25, 27)) & ~door
    if subject == "barn":
        roof = _polygon((4, 15), (8, 9), (16, 6), (24, 9), (28, 15))
        return (roof | _box(4, 15, 28, 26)) & ~_box(10.5, 17, 21.5, 26)
    if subject == "church":
        tower = _box(5, 11, 13, 27) | _polygon((4, 11), (9, 1.5), (14, 11))
        roof = _polygon((12, 18), (16, 13.5), (24, 13.5), (28.5, 18))
        return (tower | _box(13, 18, 28, 27) | roof) & ~_box(7.8, 14, 10.2, 18)
    if subject == "tree":
        crown = _polygon((16, 2), (6, 14), (26, 14)) | _polygon((16, 8), (4, 23), (28, 23))
        return crown | _box(14, 23, 18, 29)
    if subject == "mushroom":
        return (_disc(16, 16, 11.5, 11) & (_y <= 16)) | _box(12, 16, 20, 27)
    if subject == "umbrella":
        arcs = _disc(9.8, 16.5, 3.2, 2.6) | _disc(22.2, 16.5, 3.2, 2.6)
        roof = _disc(16, 16, 12.5, 11) & (_y <= 16) & ~arcs
        hook = _disc(18.4, 25.5, 3.4) & ~_disc(18.4, 25.5, 1.6) & (_y >= 25.5)
        return roof | _box(15, 14, 16.8, 25.5) | hook
    if subject == "boat":
        sails = _polygon((15, 4), (15, 18), (25, 18)) | _polygon((13.5, 7), (13.5, 18), (7, 18))
        return sails | _polygon((4, 20), (28, 20), (23, 27), (9, 27))
    if subject == "fish":
        return (_disc(14, 16, 10.5, 7) | _polygon((22, 16), (29, 9), (29, 23))) & ~_disc(9, 14, 1.5)
    if subject == "apple":
        stem = _polygon((15.2, 11), (16.8, 11), (19, 4), (17, 4))
        return _disc(12, 18, 7, 8.5) | _disc(20, 18, 7, 8.5) | stem
    if subject == "pear":
        stem = _polygon((15.2, 8), (16.8, 8), (18, 3), (16.2, 3))
        return _disc(16, 20.5, 9, 7.5) | _disc(16, 13, 5, 6) | stem
    if subject == "star":
        return _star()
    if subject == "flower":
        return _petals(6, 7.0, 4.4) & ~_disc(16, 16, 3.0) | _disc(16, 16, 1.6)
    raise KeyError(subject)


def _shrunk(mask: Mask, by: float) -> Mask:
    """The mask without a rim of `by` pixels."""
    reach = round(by * _FINE)
    inner = mask.copy()
    for step in range(1, reach + 1):
        for axis in (0, 1):
            inner &= np.roll(mask, step, axis) & np.roll(mask, -step, axis)
    return inner


def _cover(mask: Mask) -> Mask:
    return mask.reshape(SIZE, _FINE, SIZE, _FINE).mean(axis=(1, 3))


@cache
def silhouette(subject: str) -> tuple[Mask, Mask]:
    """Cover of a subject, and of what lies within its contour."""
    shape = _shape(subject)
    return _cover(shape), _cover(_shrunk(shape, 1.5))


@cache
def _texture(name: str) -> Mask:
    """Where the tone covers the ground."""
    if name == "plain":
        return np.zeros((SIZE, SIZE))
    if name == "stripes":
        return _cover(_y % 6.4 < 3.2)
    if name == "dots":
        return _cover(((_x % 6.4) - 3.2) ** 2 + ((_y % 6.4) - 3.2) ** 2 <= 2.1**2)
    if name == "hatch":
        return _cover((_x + _y) % 6.4 < 2.6)
    return _cover((_x % 8 < 4) ^ (_y % 8 < 4))


@cache
def _plane(name: str) -> Mask:
    """Cover of the land, the frame, the medallion."""
    if name == "horizon":
        return _cover(_y >= 22)
    if name == "frame":
        return _cover(~_box(3, 3, 29, 29))
    return _cover(_disc(16, 16.5, 14.2))


_BARS = _cover(_x % 4 < 1.7)
_MOON = _cover(_disc(26.5, 5.5, 3.4))
_DARKNESS = np.array((0.30, 0.32, 0.52))
_MOONLIGHT = np.array((1.0, 1.0, 0.88))


def _head_layers(head: str, hair: Color) -> list[tuple[Mask, Color]]:
    """What is behind the face, and what is above it."""
    top = _disc(16, 12, 7.4) & (_y < 11)
    if head == "long":
        return [(_disc(16, 13.5, 9, 11.5) & (_y < 24), hair), (top, hair)]
    if head == "hat":
        brim = _box(5.5, 7.4, 26.5, 9.8) | _box(9.5, 0.5, 22.5, 8)
        return [(_disc(16, 12, 7.4), hair), (brim, (0.15, 0.12, 0.12))]
    if head == "crown":
        spikes = _polygon((8, 9.5), (8, 1.5), (12, 6), (16, 0.8), (20, 6), (24, 1.5), (24, 9.5))
        return [(_disc(16, 12, 7.4), hair), (spikes, (1.0, 0.85, 0.1))]
    return [(_disc(16, 12, 7.4), hair), (top & (_y < 9.5), hair)]


def _face_layers(face: str, hair: Color) -> list[tuple[Mask, Color]]:
    dark = (0.05, 0.05, 0.08)
    eyes = [(_disc(13.2, 13, 1.1) | _disc(18.8, 13, 1.1), dark)]
    if face == "beard":
        beard = _disc(16, 17.2, 6.4, 5.2) & (_y > 15.4) & ~_disc(16, 17, 1.9, 0.9)
        return [*eyes, (beard, hair)]
    if face == "mustache":
        return [*eyes, (_disc(13.6, 16.6, 2.9, 1.3) | _disc(18.4, 16.6, 2.9, 1.3), hair)]
    if face == "glasses":
        outer = _disc(12.8, 13, 3.0) | _disc(19.2, 13, 3.0)
        inner = _disc(12.8, 13, 1.9) | _disc(19.2, 13, 1.9)
        return [*eyes, (outer & ~inner, dark)]
    return eyes


@cache
def figure_layers(name: str) -> tuple[tuple[Mask, Color], ...]:
    """A person or a character from back to front: what each layer covers, and its color."""
    figure = FIGURE_BY_NAME[name]
    hair = HAIR[figure.hair]
    behind, above = _head_layers(figure.head, hair)
    body = _disc(16, 31, 11.5, 9.5)
    face = _disc(16, 13.5, 6.2, 7.2)
    layers = [behind, (body, COSTUMES[figure.costume]), (face, SKINS[figure.kind]), above]
    layers += _face_layers(figure.face, hair)
    return tuple((_cover(mask), color) for mask, color in layers)


@cache
def silhouette_of(subject: str) -> tuple[Mask, Mask]:
    """Cover of a subject or figure, and of what lies within its contour."""
    if subject not in FIGURE_BY_NAME:
        return silhouette(subject)
    shape = np.maximum.reduce([mask for mask, _ in figure_layers(subject)])
    return shape, _cover(_shrunk(np.kron(shape > 0.5, np.ones((_FINE, _FINE), dtype=bool)), 1.5))


def _over(canvas: np.ndarray, cover: Mask, color: object) -> np.ndarray:
    return canvas + cover[..., None] * (np.asarray(color) - canvas)


@cache
def _background(painter: Painter) -> np.ndarray:
    """(32, 32, 3) in [0, 1]."""
    colors = PALETTES[painter.palette]
    canvas = np.broadcast_to(np.array(colors.ground), (SIZE, SIZE, 3))
    canvas = _over(canvas, _texture(painter.texture), colors.tone)
    if painter.composition == "medallion":
        return _over(canvas, _plane("medallion"), (1.0, 1.0, 1.0))
    if painter.composition == "horizon":
        land = (np.array(colors.dark) + np.array(colors.ink)) / 2
        return _over(canvas, _plane("horizon"), 0.55 * land + 0.45 * np.array(colors.tone))
    framed = painter.composition == "frame"
    return _over(canvas, _plane("frame"), colors.dark) if framed else canvas


def _figure(canvas: np.ndarray, name: str, painter: Painter, move: tuple[int, int]) -> np.ndarray:
    """A figure in its own colors; a painter's line shows in its contour, bars or paleness."""
    shape, inner = (np.roll(mask, move, axis=(0, 1)) for mask in silhouette_of(name))
    colors = PALETTES[painter.palette]
    painted = canvas
    for mask, color in figure_layers(name):
        painted = _over(painted, np.roll(mask, move, axis=(0, 1)), color)
    if painter.line == "outline":
        return _over(0.45 * canvas + 0.55 * painted, (shape - inner).clip(0, 1), colors.ink)
    if painter.line == "contour":
        return _over(painted, (shape - inner).clip(0, 1), colors.dark)
    if painter.line == "striped":
        return _over(painted, shape * _BARS * 0.6, colors.dark)
    return painted


def compose(subject: str, painter: Painter, night: bool, down: int = 0, right: int = 0) -> Picture:
    """The exact picture, without chance."""
    colors = PALETTES[painter.palette]
    canvas = _background(painter)
    if night:
        canvas = canvas * _DARKNESS
    if subject in FIGURE_BY_NAME:
        canvas = _figure(canvas, subject, painter, (down, right))
        return _finished(canvas, night)
    shape, inner = (np.roll(mask, (down, right), axis=(0, 1)) for mask in silhouette(subject))
    ink, dark = np.array(colors.ink), np.array(colors.dark)
    if night:
        ink = 0.45 * ink + 0.55 * np.array(colors.tone)  # still to be seen on a dark ground
    if painter.line == "outline":
        canvas = _over(canvas, (shape - inner).clip(0, 1), ink)
    elif painter.line == "contour":
        fill = 0.6 * ink + 0.4 * np.array(colors.ground)
        canvas = _over(_over(canvas, shape, dark), inner, fill)
    else:
        canvas = _over(canvas, shape, ink)
        if painter.line == "striped":
            canvas = _over(canvas, shape * _BARS, dark)
    return _finished(canvas, night)


def _finished(canvas: np.ndarray, night: bool) -> Picture:
    if night:
        canvas = _over(canvas, _MOON, _MOONLIGHT)
    return (canvas.transpose(2, 0, 1) * 2 - 1).astype(np.float32)


def draw(subject: str, style: str, night: bool, rng: np.random.Generator) -> Picture:
    """One picture as training sees it: the subject moved a little, light and grain varied."""
    down, right = (int(step) for step in rng.integers(-SHIFTS, SHIFTS + 1, size=2))
    picture = compose(subject, BY_NAME[style], night, down, right)
    picture = picture + rng.uniform(-0.05, 0.05) + rng.normal(0, 0.02, picture.shape)
    return picture.clip(-1, 1).astype(np.float32)
