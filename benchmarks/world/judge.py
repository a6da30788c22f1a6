"""The judge: names painter, night and subject of a picture by the nearest rendering. Nothing is
trained.

The background, where no subject ever stands, tells painter and night: it is compared with all 26 of
them. Then the whole picture is compared with every subject at every place in that manner.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from .render import MOVES, compose, draw, masks
from .world import BY_NAME, NOTHING, SCENES, SIZE, STYLES, SUBJECTS

_POOL = 2
"""Pictures are compared at half their width: edges need not fit to the pixel."""
_REGIONS = 4
FEATURES = 2 * 3 * _REGIONS**2


@dataclass(frozen=True)
class Verdict:
    """Class indices (n,) of subject (in `SCENES`), style (in `STYLES`) and night, and the features
    (n, 96).
    """

    subject: Tensor
    style: Tensor
    night: Tensor
    features: Tensor


class Judge:
    """Verdicts on pictures (n, 3, 128, 128) in [-1, 1]; values outside are clipped as a picture
    file would.
    """

    def judge(self, pictures: Tensor) -> Verdict:
        colours = pictures.float().clamp(-1, 1)
        small = F.avg_pool2d(colours, _POOL)
        found = [_named(picture) for picture in small]
        subject, style, night = (torch.tensor(part) for part in zip(*found, strict=True))
        return Verdict(subject, style, night, features(colours))


def features(colours: Tensor) -> Tensor:
    """Mean and spread of each colour in 16 regions, (n, 96): what the Frechet distance sees."""
    side = SIZE // _REGIONS
    mean = F.avg_pool2d(colours, side)
    spread = (F.avg_pool2d(colours.square(), side) - mean.square()).clamp(min=0).sqrt()
    return torch.cat([mean.flatten(1), spread.flatten(1)], dim=1)


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
    """Where no subject reaches wherever it stands, (64, 64)."""
    reached = np.zeros((SIZE, SIZE))
    for subject in SUBJECTS:
        for right in MOVES:
            reached = np.maximum(reached, np.roll(masks(subject)[0], right, axis=1))
    return F.avg_pool2d(torch.from_numpy(reached)[None], _POOL)[0] == 0


def _small(subject: str, style: str, night: bool, right: int = 0) -> Tensor:
    return F.avg_pool2d(torch.from_numpy(compose(subject, BY_NAME[style], night, right)), _POOL)


@functools.cache
def _backgrounds() -> Tensor:
    """Every painter's background by day and by night, (26, 3, pixels around)."""
    return torch.stack(
        [_small(NOTHING, style, night)[:, _around()] for style in STYLES for night in (False, True)]
    )


@functools.cache
def _scenes(style: int, night: bool) -> Tensor:
    """Every scene at every place in a manner, (55, 3, 64, 64)."""
    return torch.stack(
        [_small(scene, STYLES[style], night, right) for scene in SCENES for right in MOVES]
    )


def roughened(colours: Tensor, generator: torch.Generator) -> Tensor:
    """What a diffusion model might do to a picture: grain, blur, light and contrast."""
    count = len(colours)

    def amount(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, 1, 1, 1, generator=generator)

    soft = F.avg_pool2d(F.pad(colours, (2, 2, 2, 2), mode="replicate"), 5, stride=1)
    colours = torch.lerp(colours, soft, amount(0.0, 0.8))
    colours = colours * amount(0.8, 1.15) + amount(-0.12, 0.12)
    grain = torch.randn(colours.shape, generator=generator) * amount(0.0, 0.3)
    return (colours + grain).clamp(-1, 1)


def accuracy(count: int = 400, seed: int = 2) -> dict[str, float]:
    """Shares of right verdicts on fresh renderings, as drawn and roughened."""
    rng = np.random.default_rng(seed)
    truth = [
        (int(rng.integers(len(SCENES))), int(rng.integers(len(STYLES))), int(rng.random() < 0.25))
        for _ in range(count)
    ]
    drawn = torch.from_numpy(
        np.stack([draw(SCENES[a], STYLES[b], bool(c), rng) for a, b, c in truth])
    )
    scores = {}
    for kind, seen in (
        ("clean", drawn),
        ("rough", roughened(drawn, torch.Generator().manual_seed(seed))),
    ):
        verdict = Judge().judge(seen)
        for head, place in (("subject", 0), ("style", 1), ("night", 2)):
            right = getattr(verdict, head) == torch.tensor([one[place] for one in truth])
            scores[f"{kind}_{head}"] = right.float().mean().item()
    return scores
