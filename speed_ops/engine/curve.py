"""The trade-off of an erasure: what is left of the targets against how far other names drift.

With N for what the kept names leave to the edit (a null space or a soft prior), K = C1 N C1' and K
= U S U', the edit of every `lam` is

    delta(lam) = W (U' X)' (S + lam I)^-1 (U' C1 N),        X = C* - C1,

so one decomposition of an `n x n` matrix gives the whole curve; each point of it is a diagonal.

Left and drift are sizes of layer outputs, over all layers at once: |W c| is taken from a few random
mixtures of each layer's rows (`sketch`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .closed_form import Span
from .draws import generator, normal
from .prepare import widen
from .rows import Rows, RowSet, per_concept

POINTS = 20
MIN_LAM_RATIO, MAX_LAM_RATIO = 1e-7, 1e1
"""`lam` as shares of K's largest eigenvalue. At the one the targets reach their anchors wherever N
lets them at all, at the other less than a tenth of any edit is left."""
SKETCH_ROWS = 1024
"""Mixtures for all layers together; the size of one row is off by 2 % (1 / sqrt(2 * 1024))."""
MAX_LISTED = 8
"""Kept names listed as being in the way."""
_DECIMALS = 6


def stable(share: float) -> float:
    """A share or a drift without the digits that depend on the number of threads: what is decided
    by it, and what is stored, is then always the same. Near zero they begin at the ninth decimal.
    """
    return round(share, _DECIMALS)


@dataclass(frozen=True)
class CurvePoint:
    """One edit of the family."""

    lam: float
    left: float
    """Of the targets, in contexts that the edit was not made from: mean over concepts."""
    drift: float
    """Of names that the edit was not made with: mean over names."""
    spread: float
    """Standard error of that mean."""
    to_go: float
    """Left of the direct way from target to anchor; `left` also counts what moved sideways."""


@dataclass(frozen=True)
class Curve:
    """What could be had, and what was chosen."""

    points: tuple[CurvePoint, ...]
    """From the most careful edit to the freest."""
    chosen: CurvePoint
    budget: float | None
    """Drift that was allowed; None where the settings decide alone."""
    names: int
    """How many names drift was judged on."""
    unseen: bool
    """Whether those names were set aside from the edit; False where there were too few."""
    in_the_way: tuple[tuple[str, float], ...]
    """Kept names that the freest edit would move most, and how far."""


@dataclass(frozen=True, eq=False)
class RidgePath:
    """All edits of one problem, by `lam`."""

    sizes: Tensor
    """`r`: S, the eigenvalues of K."""
    down: Tensor
    """`r x d`: U' C1 N."""
    change: Tensor
    """`r x d`: U' X."""

    @cached_property
    def top(self) -> float:
        """The largest eigenvalue: the scale of `lam`."""
        size = float(f"{float(self.sizes[-1]):.8g}")  # for the reason given in `stable`
        return max(size, torch.finfo(self.sizes.dtype).tiny)


def ridge_path(targets: Tensor, change: Tensor, span: Span) -> RidgePath:
    """The path for the target rows and their change.

    Args:
        targets: `n x d`, mean-scaled target rows.
        change: `n x d`, their change, scaled alike; zero for held rows.
        span: What the kept rows leave to the edit.
    """
    free = span.remove(targets)
    system = free @ targets.T
    sizes, vectors = torch.linalg.eigh((system + system.T) / 2)
    return RidgePath(sizes.clamp(min=0), vectors.T @ free, vectors.T @ change)


def sketch(weights: Mapping[str, Tensor], like: Tensor) -> Tensor:
    """`m x d`: J with |J c|^2 near the sum over layers of |W c|^2 / |W|^2, for any few rows c."""
    rows = max(1, SKETCH_ROWS // len(weights))
    sketches = []
    for key in weights:
        weight = widen(weights[key], key, like)
        mix = normal((rows, len(weight)), generator(0, f"sketch of {key}"), like)
        size = weight.norm()
        sketches.append(
            (mix @ weight) / (size * math.sqrt(rows)).clamp(min=torch.finfo(like.dtype).tiny)
        )
    return torch.cat(sketches)


class Judge:
    """Measures edits of a path on target rows and on other names, all layers at once."""

    def __init__(
        self, path: RidgePath, layers: Tensor, trial: tuple[Rows, Rows], names: Rows
    ) -> None:
        """
        Args:
            path: All edits, by `lam`.
            layers: The layers' sketch.
            trial: Target and anchor rows.
            names: Whose drift counts.
        """
        self.sizes = path.sizes
        outputs = path.change @ layers.T  # r x m
        self.gram = outputs @ outputs.T
        targets, anchors = trial
        change = (anchors.values - targets.values) @ layers.T
        self.groups, self.concepts = targets.group_index(), len(targets.names)
        self.response, self.along = targets.values @ path.down.T, change @ outputs.T
        self.whole = change.square().sum(dim=1)
        self.names = len(names.names)
        self.members = names.group_index()
        self.reach = names.values @ path.down.T
        size = (names.values @ layers.T).square().sum(dim=1)
        self.size = per_concept(size, self.members, self.names).clamp(min=1e-30)

    def to(self, device: torch.device | str) -> Judge:
        """The same on another device."""
        moved = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(moved, name, value.to(device))
        return moved

    def measured(self, lam: float) -> Tensor:
        """Left, mean drift, its standard error and the way to go, of the edit with this `lam`."""
        drift, (left, to_go) = self.drift(lam), self.remains(lam)
        zero = drift.new_zeros(())
        mean = drift.mean() if len(drift) else zero
        spread = drift.std() / math.sqrt(len(drift)) if len(drift) > 1 else zero
        return torch.stack([left.mean(), mean, spread, to_go.mean()])

    def drift(self, lam: float) -> Tensor:
        """One for each name."""
        moved = self._sizes(self.reach / (self.sizes + lam))
        return (per_concept(moved, self.members, self.names) / self.size).sqrt()

    def remains(self, lam: float, strength: float = 1.0) -> tuple[Tensor, Tensor]:
        """What is left of each concept, and how much of that leads toward the anchor.

        What went straight on beyond the anchor is in neither.
        """
        response = strength * self.response / (self.sizes + lam)
        towards = (response * self.along).sum(dim=1)
        missing = self._sizes(response) - 2 * towards + self.whole
        tiny = torch.finfo(self.whole.dtype).tiny
        # below 0 short of the anchor, above beyond it
        way = (towards - self.whole) / self.whole.clamp(min=tiny).sqrt()
        total = per_concept(self.whole, self.groups, self.concepts).clamp(min=tiny)

        def share(sizes: Tensor) -> Tensor:
            return (per_concept(sizes, self.groups, self.concepts) / total).sqrt()

        return share((missing - way.clamp(min=0).square()).clamp(min=0)), share(
            way.clamp(max=0).square()
        )

    def _sizes(self, response: Tensor) -> Tensor:
        return ((response @ self.gram) * response).sum(dim=1).clamp(min=0)


class Judges:
    """One judge or several, each with a problem of its own: the mean of what they measure."""

    def __init__(self, judges: Sequence[Judge]) -> None:
        self.judges, self.names = judges, judges[0].names

    def to(self, device: torch.device | str) -> Judges:
        """The same on another device."""
        return Judges([judge.to(device) for judge in self.judges])

    def at(self, lam: float) -> CurvePoint:
        """Left and drift of the edit with this `lam`."""
        return self.points([lam])[0]

    def points(self, lams: Sequence[float]) -> tuple[CurvePoint, ...]:
        """The same of several edits, brought to the host at once."""
        measured = torch.stack(
            [torch.stack([judge.measured(lam) for lam in lams]) for judge in self.judges]
        )
        return tuple(
            CurvePoint(lam, *map(stable, values))
            for lam, values in zip(lams, measured.mean(dim=0).tolist(), strict=True)
        )


def judge_of(rows: RowSet, path: RidgePath, layers: Tensor) -> Judge:
    """The judge of a problem: on its trial rows and witnesses, or else on what it is made from.

    Args:
        rows: Prepared rows.
        path: All edits, by `lam`.
        layers: The layers' sketch.
    """
    trial = rows.trial or (rows.targets, rows.anchors)
    return Judge(path, layers, trial, rows.witnesses or rows.targets.take_concepts([]))


def trace(path: RidgePath, judge: Judges) -> tuple[CurvePoint, ...]:
    """Twenty points of the curve, the most careful first.

    Args:
        path: All edits, by `lam`.
        judge: Measures them.
    """
    ratio = math.log(MIN_LAM_RATIO / MAX_LAM_RATIO) / (POINTS - 1)
    return judge.points(
        [path.top * MAX_LAM_RATIO * math.exp(ratio * step) for step in range(POINTS)]
    )


def in_the_way(
    rows: RowSet, path: RidgePath, layers: Tensor, lam: float
) -> tuple[tuple[str, float], ...]:
    """The kept names that one edit would move most, and how far.

    Args:
        rows: Prepared rows.
        path: All edits, by `lam`.
        layers: The layers' sketch.
        lam: Which edit.
    """
    if not len(rows.retain.names):
        return ()
    drift = Judge(path, layers, (rows.targets, rows.anchors), rows.retain).drift(lam)
    top = drift.topk(min(MAX_LISTED, len(drift)))
    names = rows.retain.labels()
    return tuple(
        (names[index], stable(value))
        for index, value in zip(top.indices.tolist(), top.values.tolist(), strict=True)
    )
