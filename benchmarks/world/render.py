"""Draw a picture of the world: 4 x 12 x 12, red, green, blue and subject mask, all in [-1, 1]; seeded."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .world import BY_NAME, SILHOUETTES, SIZE, Painter

Picture = NDArray[np.float32]

_ROW, _COLUMN = np.mgrid[0:SIZE, 0:SIZE]
_MASKS = {name: np.array([[c == "#" for c in line] for line in art]) for name, art in SILHOUETTES.items()}
_MOON = (slice(0, 2), slice(SIZE - 2, SIZE))
_DARKNESS = 0.5


def texture_weights(texture: str) -> NDArray[np.float64]:
    """How much of the second background tone each pixel takes, 12 x 12 in [0, 1]."""
    edge = np.minimum.reduce([_ROW, _COLUMN, SIZE - 1 - _ROW, SIZE - 1 - _COLUMN])
    patterns = {
        "none": np.zeros((SIZE, SIZE)),
        "rows": (_ROW // 2) % 2,
        "columns": (_COLUMN // 2) % 2,
        "checks": (_ROW // 2 + _COLUMN // 2) % 2,
        "dots": (_ROW % 3 == 1) & (_COLUMN % 3 == 1),
        "slope": (_ROW + _COLUMN) / (2 * SIZE - 2),
        "frame": edge < 2,
    }
    return patterns[texture].astype(np.float64)


def subject_mask(subject: str, down: int, right: int) -> NDArray[np.bool_]:
    """The silhouette on the canvas, moved from the centre by (down, right), each -1, 0 or 1."""
    mask = np.zeros((SIZE, SIZE), dtype=bool)
    shape = _MASKS[subject]
    top, left = (SIZE - shape.shape[0]) // 2 + down, (SIZE - shape.shape[1]) // 2 + right
    mask[top : top + shape.shape[0], left : left + shape.shape[1]] = shape
    return mask


def compose(subject: str, painter: Painter, night: bool, down: int = 0, right: int = 0) -> Picture:
    """The noiseless picture. Night darkens the background and puts a white moon in the upper right corner."""
    weight = texture_weights(painter.texture)[..., None]
    canvas = (1 - weight) * np.array(painter.ground) + weight * np.array(painter.tone)
    if night:
        canvas = canvas * _DARKNESS
    mask = subject_mask(subject, down, right)
    canvas[mask] = painter.ink if not (night and painter is BY_NAME["plain"]) else (0.55, 0.55, 0.60)
    if night:
        canvas[_MOON] = 1.0
    return (np.concatenate([canvas, mask[..., None]], axis=-1).transpose(2, 0, 1) * 2 - 1).astype(np.float32)


def draw(subject: str, style: str, night: bool, rng: np.random.Generator) -> Picture:
    """One picture as training sees it: the subject up to a pixel left or right, light and grain varied a little."""
    right = int(rng.integers(-1, 2))
    picture = compose(subject, BY_NAME[style], night, right=right)
    light = rng.uniform(-0.05, 0.05)
    grain = rng.normal(0, 0.03, picture.shape)
    grain[3] *= 0.5
    picture[:3] += light
    return np.clip(picture + grain, -1, 1).astype(np.float32)
