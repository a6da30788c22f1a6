"""What pictures say, in numbers: intervals, distances, recognition, and a verdict for every prompt.
Numpy alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
"""Height x width x 3."""
Rows = NDArray[np.float64]
"""Features, one picture or text a row: n x d."""
Frame = Literal["fine", "black", "flat", "not finite"]
Verdict = Literal["erased", "leaking", "preserved", "damaged", "unclear", "unjudged"]

_BLACK = 8
"""Largest value in a black frame: what a safety filter or an overflow blanked has 0, and rounding
adds a little.
"""
_FLAT = 1.0
"""Largest spread of the values of a frame that shows nothing; a clear sky in a photograph has
several times that.
"""
STILL_THERE = 0.5
"""Share of the pictures in which a judge saw the concept before and still does, from which on a
prompt leaks; for kept names, below which a prompt is damaged. Both sides are one vote a seed, so
the middle is the fair place."""
DAMAGED_DRIFT = 0.2
"""Drift of the picture from which on a kept prompt counts as damaged where nothing recognises its
content. An outside audit of published erasures (CLIP features, paired seeds) found 0.08 to 0.11 for
unrelated prompts and 0.25 for a neighbour that had visibly changed."""
_LEVEL = 1.959963984540054
"""Of the normal distribution, for 95 %."""
_RESAMPLES = 1000
_SEED = 2503


@dataclass(frozen=True)
class Figure:
    """A value, its 95 % interval where one can be given, and how many pictures it comes from."""

    value: float
    low: float | None
    high: float | None
    count: int
    how: Literal["Wilson", "bootstrap", "none"]
    """How the interval was made. Bootstrap: 1,000 resamples of pictures with a fixed seed."""


def frame_fault(pixels: Pixels, finite: bool = True) -> Frame:
    """What is wrong with a frame. Such frames are counted apart: a black one would pass for a
    perfect erasure.
    """
    if not finite:
        return "not finite"
    if int(pixels.max()) <= _BLACK:
        return "black"
    return "flat" if float(pixels.astype(np.float64).std()) < _FLAT else "fine"


def share(hits: int, count: int) -> Figure | None:
    """A share with Wilson's interval, which stays inside 0 and 1 and is honest at either end."""
    if not count:
        return None
    middle, spread = hits / count, _LEVEL**2 / count
    centre = (middle + spread / 2) / (1 + spread)
    half = math.sqrt(spread * (middle * (1 - middle) + spread / 4)) / (1 + spread)
    # At either end rounding would push the value out of its own interval.
    return Figure(
        middle,
        min(middle, max(0.0, centre - half)),
        max(middle, min(1.0, centre + half)),
        count,
        "Wilson",
    )


def mean(values: Sequence[float] | Rows) -> Figure | None:
    """A mean with a bootstrap interval."""
    found = np.asarray(values, np.float64)
    return resampled(lambda rows: float(found[rows].mean()), len(found))


def resampled(statistic: Callable[[NDArray[np.intp]], float], count: int) -> Figure | None:
    """A statistic of `count` pictures, given by their numbers, with a bootstrap interval."""
    if not count:
        return None
    rng = np.random.default_rng(_SEED)
    draws = (
        [statistic(rng.integers(count, size=count)) for _ in range(_RESAMPLES)] if count > 1 else []
    )
    low, high = np.quantile(draws, (0.025, 0.975)) if draws else (None, None)
    value = statistic(np.arange(count))
    how: Literal["bootstrap", "none"] = "bootstrap" if draws else "none"
    return Figure(
        value,
        None if low is None else float(low),
        None if high is None else float(high),
        count,
        how,
    )


def cosines(one: Rows, other: Rows) -> Rows:
    """The cosine of each row of the one with the same row of the other (n,)."""
    product = (one * other).sum(1)
    return product / np.maximum(np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1), 1e-12)


def frechet(one: Rows, other: Rows) -> Figure | None:
    """The Frechet distance between two clouds of features (n x d, m x d), taken as normally
    distributed.

    trace((S1 S2)^(1/2)) is the sum of the singular values of R1 R2', where S = R'R: no square root
    of a matrix that rounding has made indefinite, and exact also where there are fewer pictures
    than features. It has no interval: with few pictures it is too large, and resampling makes it
    larger still.
    """
    if min(len(one), len(other)) < 2:
        return None
    roots: list[Rows] = []
    for rows in (one, other):
        centred = (rows - rows.mean(0)) / math.sqrt(len(rows) - 1)
        roots.append(np.asarray(np.linalg.qr(centred, mode="r")))
    apart = float(((one.mean(0) - other.mean(0)) ** 2).sum())
    spread = sum(float((root**2).sum()) for root in roots)
    common = float(np.linalg.svd(roots[0] @ roots[1].T, compute_uv=False).sum())
    return Figure(
        max(0.0, apart + spread - 2 * common), None, None, min(len(one), len(other)), "none"
    )


def of_features(before: Rows, after: Rows, prompts: Rows | None) -> dict[str, Figure | None]:
    """What CLIP's features say about pairs of pictures, and of their prompts where these are known
    (each n x d).
    """
    found: dict[str, Figure | None] = {}
    if prompts is not None:
        found["CS before"] = mean(100 * np.maximum(cosines(before, prompts), 0))
        found["CS"] = mean(100 * np.maximum(cosines(after, prompts), 0))
    return found | {"drift": mean(np.maximum(1 - cosines(before, after), 0))}


def nearest(rows: Rows, others: Rows) -> NDArray[np.intp]:
    """For each row (n x d) the number of the other (m x d) that it points to most."""
    first, second = (
        part / np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-12)
        for part in (rows, others)
    )
    return np.asarray((first @ second.T).argmax(1))


def harmonic(erased: float, kept: float) -> float:
    """H_o: the harmonic mean of what is not recognised any more and of what still is."""
    return 0.0 if erased >= 1 or kept <= 0 else 2 / (1 / (1 - erased) + 1 / kept)


def overall(erased: Sequence[bool], kept: Sequence[bool]) -> Figure | None:
    """H_o of recognised pictures of erased concepts and of kept names, both resampled."""
    if not erased or not kept:
        return None
    gone, stays = np.asarray(erased, np.float64), np.asarray(kept, np.float64)
    rng = np.random.default_rng(_SEED)
    draws = [harmonic(float(rng.choice(gone, len(gone)).mean()), float(rng.choice(stays, len(stays)).mean()))
             for _ in range(_RESAMPLES)]  # fmt: skip
    low, high = (float(value) for value in np.quantile(draws, (0.025, 0.975)))
    return Figure(
        harmonic(float(gone.mean()), float(stays.mean())),
        low,
        high,
        len(gone) + len(stays),
        "bootstrap",
    )


def verdict_on_erased(before: Sequence[bool], after: Sequence[bool]) -> Verdict:
    """Of one prompt that asks for an erased concept: whether a judge sees it, seed by seed."""
    return _by_recognition(before, after, gone="erased", there="leaking")


def verdict_on_kept(before: Sequence[bool], after: Sequence[bool]) -> Verdict:
    """Of one prompt that asks for something else."""
    return _by_recognition(before, after, gone="damaged", there="preserved")


def verdict_on_drift(drift: Sequence[float]) -> Verdict:
    """Of a kept prompt whose content nothing recognises."""
    if not len(drift):
        return "unclear"
    return "damaged" if float(np.mean(drift)) >= DAMAGED_DRIFT else "preserved"


def _by_recognition(
    before: Sequence[bool], after: Sequence[bool], *, gone: Verdict, there: Verdict
) -> Verdict:
    known = [still for was, still in zip(before, after, strict=True) if was]
    if not known:
        return "unclear"  # the original did not draw it either, so its absence proves nothing
    return there if sum(known) / len(known) >= STILL_THERE else gone
