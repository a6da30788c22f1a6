"""The judge: names painter, night and subject of a picture by the nearest rendering.

The background tells painter and night; then every subject at every place is compared.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from .render import MOVES, compose, masks
from .world import BY_NAME, NOTHING, SCENES, SIZE, STYLES, SUBJECTS, Painter

_POOL = 2
"""Pictures are compared at half their width: edges need not fit to the pixel."""


@dataclass(frozen=True)
class Verdict:
    """Class indices (n,) of subject (in `SCENES`), style (in `STYLES`) and night."""

    subject: Tensor
    style: Tensor
    night: Tensor


class Judge:
    """Verdicts on pictures (n, 3, 128, 128) in [-1, 1]; values outside are clipped."""

    def judge(self, pictures: Tensor) -> Verdict:
        colors = pictures.float().clamp(-1, 1)
        named = [_named(image) for image in F.avg_pool2d(colors, _POOL)]
        return Verdict(*(torch.tensor(indices) for indices in zip(*named, strict=True)))


def _named(picture: Tensor) -> tuple[int, int, int]:
    """(subject, style, night) of one picture (3, 64, 64)."""
    around = _around()
    own = picture[:, around]
    nearest = (_backgrounds() - own[None]).square().mean(dim=(1, 2)).argmin()
    style, night = divmod(int(nearest), 2)
    apart = (_scenes(style, bool(night)) - picture[None]).square().mean(dim=(1, 2, 3))
    return int(apart.argmin()) // len(MOVES), style, night


@functools.cache
def _around() -> Tensor:
    """Where no subject reaches at any position, (64, 64)."""
    reached = np.zeros((SIZE, SIZE))
    for subject in SUBJECTS:
        for right in MOVES:
            reached = np.maximum(reached, np.roll(masks(subject)[0], right, axis=1))
    return F.avg_pool2d(torch.from_numpy(reached)[None], _POOL)[0] == 0


def nearest_style(image: Tensor, painters: Sequence[Painter]) -> Painter:
    """The one of these painters whose background by day is nearest, of an image (3, 128, 128)."""
    own = F.avg_pool2d(image, _POOL)[:, _around()]
    backgrounds = (compose(NOTHING, painter, False) for painter in painters)
    pooled = [F.avg_pool2d(torch.from_numpy(b), _POOL)[:, _around()] for b in backgrounds]
    return painters[int((torch.stack(pooled) - own).square().mean(dim=(1, 2)).argmin())]


def _small(subject: str, style: str, night: bool, right: int = 0) -> Tensor:
    return F.avg_pool2d(torch.from_numpy(compose(subject, BY_NAME[style], night, right)), _POOL)


@functools.cache
def _backgrounds() -> Tensor:
    """Every painter's background by day and by night, (26, 3, pixels around)."""
    times = itertools.product(STYLES, (False, True))
    return torch.stack([_small(NOTHING, style, night)[:, _around()] for style, night in times])


@functools.cache
def _scenes(style: int, night: bool) -> Tensor:
    """Every scene at every place in a manner, (55, 3, 64, 64)."""
    places = itertools.product(SCENES, MOVES)
    return torch.stack([_small(scene, STYLES[style], night, right) for scene, right in places])
