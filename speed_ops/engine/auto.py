"""What the preset `auto` settles by itself: rows per concept, and how far to go.

An erasure trades what is left of the targets against how far everything else drifts. `auto` goes
along the curve of both (`curve`), as far toward the anchors as the limit on drift allows, and less
far where more drift gains little or leads away from the anchors. It judges by tuning names and
tuning prompts: the edit is not made from them, and the certificate judges by others.
Where the caller set no prompts aside, it cross-validates over those that there are (`folds`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ..progress import Stopwatch
from .closed_form import Span
from .curve import (
    Curve,
    CurvePoint,
    Judge,
    Judges,
    RidgePath,
    in_the_way,
    judge_of,
    ridge_path,
    sketch,
    trace,
)
from .folds import folds
from .layers import LayerSolver, refines
from .pairs import ErasePairs, pair_up
from .rows import RowSet
from .settings import EraseSettings

WORTH_ITS_DRIFT = 0.01
"""An edit this close to the best within the budget that drifts less is better."""
MAX_EXTRA_RESIDUAL = 0.05
"""What remains may be this much above the least, for a shorter way to the replacement. Images stop
showing a concept once it has arrived there, whatever moved sideways meanwhile
(docs/research/image-tests). Where a text encoder hardly knows a name, a stronger edit moves
sideways faster than it arrives.
"""
MIN_KNEE_SLOPE = 0.3
"""One percent more drift must shorten the way to go by this many percent, or the curve has passed
its knee. With 0.3 none of the ten erasures that pictures judge are cut (`benchmarks.crowd
choices`), and those are cut that gain almost nothing (docs/research/limits.md, random and
untrained CLIP-L); 0.4 would stop one painter in mpnet at a fifth of his drift."""
FREE_DRIFT = 0.05
"""Drift that need not pay: pictures of kept names do not show it (docs/research/image-tests)."""
SECOND_SOFTNESS_RATIO = 1 / 30
"""The second softness that is tried. A tidy text encoder leaves directions that no name uses, and
there a prior next to a null space erases more; an untidy one leaves none, and there the softer
prior does (docs/research/limits.md)."""
RANK_BUDGET = 400
"""Rows of all concepts together, beyond which the LoRA would be larger than it is worth."""
_HALVINGS = 6  # of a step of the curve, to meet the budget within 1 %


def settle_rows(settings: EraseSettings, concepts: int) -> EraseSettings:
    """Fewer rows per concept where there are many, so that the rank stays within the budget."""
    if settings.preset_name != "auto":
        return settings
    return settings.replace(
        rows_per_concept=max(2, min(settings.rows_per_concept, RANK_BUDGET // max(1, concepts)))
    )


@dataclass(frozen=True, eq=False)
class Traced:
    """One softness: its curve, who chooses on it, and who measures in the report's prompts."""

    points: tuple[CurvePoint, ...]
    judge: Judges
    reporter: Judge

    def to(self, device: torch.device | str) -> Traced:
        """The same on another device."""
        return Traced(self.points, self.judge.to(device), self.reporter.to(device))


class Settled(NamedTuple):
    """Settings with nothing left to choose, and what was found on the way."""

    settings: EraseSettings
    curve: Curve | None = None
    """Where one curve holds for all layers."""
    span: Span | None = None
    """What the kept names leave to the edit."""
    candidates: tuple[Traced, ...] = ()
    """What `auto` chose from; none where the settings decide alone."""


def settle(
    rows: RowSet,
    pairs: ErasePairs,
    settings: EraseSettings,
    weights: Mapping[str, Tensor],
    watch: Stopwatch,
) -> Settled:
    """Chooses for `auto`, and traces the trade-off wherever there is one.

    Args:
        rows: Prepared rows.
        pairs: Their targets and anchors, paired and compressed.
        settings: What the caller asked for.
        weights: {layer key: `o x d`}.
        watch: Where the seconds go.
    """
    auto = settings.preset_name == "auto"
    one_curve = settings.method == "speed" and not refines(settings) and settings.mu == 0
    if not one_curve or not (auto or rows.witnesses):
        return Settled(settings)
    with watch.part("curve"):
        layers = sketch(weights, rows.targets.values)
    chooses = auto and settings.prior == "soft"
    softness = SECOND_SOFTNESS_RATIO * settings.softness
    tried = [settings, settings.replace(softness=softness)] if chooses else [settings]
    traced = [_traced(rows, pairs, each, layers, chooses, watch) for each in tried]
    best = preferred([curve.chosen for _, curve, _, _ in traced])
    chosen, curve, span, _ = next(entry for entry in traced if entry[1].chosen == best)
    candidates = tuple(candidate for _, _, _, candidate in traced)
    return Settled(chosen, curve, span, candidates if chooses else ())


def _traced(
    rows: RowSet,
    pairs: ErasePairs,
    settings: EraseSettings,
    layers: Tensor,
    chooses: bool,
    watch: Stopwatch,
) -> tuple[EraseSettings, Curve, Span, Traced]:
    """One softness: its curve, and the point on it."""
    path, span = _path(rows, pairs, settings, watch)
    problems = [(rows, path)]
    if chooses and (parts := folds(rows)):
        paired = ((part, pair_up(part, settings)) for part in parts)
        problems = [(part, _path(part, own, settings, watch)[0]) for part, own in paired]
    with watch.part("curve"):
        judge = Judges([judge_of(part, own, layers) for part, own in problems])
        points = trace(path, judge)
        budget = settings.drift_budget if chooses else None
        point = judge.at(settings.lam) if budget is None else choose(points, judge, budget)
        curve = Curve(
            points=points,
            chosen=point,
            budget=budget,
            names=judge.names,
            unseen=rows.witnesses_are_held_out,
            in_the_way=in_the_way(rows, path, layers, points[-1].lam),
        )
        reported = rows.probes or rows.trial or (rows.targets, rows.anchors)
        reporter = Judge(path, layers, reported, rows.targets.take_concepts([]))
    return settings.replace(lam=point.lam), curve, span, Traced(points, judge, reporter)


def _path(
    rows: RowSet, pairs: ErasePairs, settings: EraseSettings, watch: Stopwatch
) -> tuple[RidgePath, Span]:
    """All edits of a problem, and what its kept names leave to them."""
    solver = LayerSolver(pairs, rows.retain, settings, watch)
    span = solver.span_for_all()
    with watch.part("curve"):
        return ridge_path(*solver.system(span)), span


def choose(points: tuple[CurvePoint, ...], judge: Judges, budget: float) -> CurvePoint:
    """The furthest way within the budget and up to the knee, or nearly as far for less drift.

    Args:
        points: The curve, the most careful edit first.
        judge: Measures further points.
        budget: The most drift to allow.
    """
    within, budget = reachable(points, budget), min(budget, knee(points))
    beyond = points[len(within) :] if within == list(points[: len(within)]) else ()
    if within and beyond:
        within += _between(judge, within[-1], beyond[0], budget)
    if not within:  # not even the most careful edit of the curve: go on until the budget is met
        lam = points[0].lam
        while spent(point := judge.at(lam)) > budget:
            lam *= max(2.0, spent(point) / budget)
        within = [point]
    return preferred(within)


def reachable(points: Sequence[CurvePoint], budget: float) -> list[CurvePoint]:
    """The points within a budget and up to the knee."""
    limit = min(budget, knee(points))
    return [point for point in points if spent(point) <= limit]


def spent(point: CurvePoint) -> float:
    """Drift with its uncertainty: few witnesses must not overspend."""
    return point.drift + point.spread


def knee(points: Sequence[CurvePoint]) -> float:
    """The drift beyond which no more of it pays, anywhere on the curve.

    Of the whole curve, because the first drift buys little on every one: the way shortens fastest
    in the middle.
    """
    paid = [spent(after) for before, after in pairwise(points) if _pays(before, after)]
    return max([FREE_DRIFT, *paid])


def _pays(before: CurvePoint, after: CurvePoint) -> bool:
    """Whether a step along the curve is worth its drift: by the way to go or, as in a tidy encoder
    where that is soon gone, by what is left."""
    if after.drift <= FREE_DRIFT:
        return True
    price = MIN_KNEE_SLOPE * math.log(after.drift / max(before.drift, FREE_DRIFT * WORTH_ITS_DRIFT))
    return any(
        math.log(max(old, WORTH_ITS_DRIFT) / max(new, WORTH_ITS_DRIFT)) >= price
        for old, new in ((before.to_go, after.to_go), (before.left, after.left))
    )


def preferred(points: Sequence[CurvePoint]) -> CurvePoint:
    """Among those near the least left, the one with the shortest way to go, then that which leaves
    least; nearly as good for less drift is better."""
    least = min(point.left for point in points)
    near = [point for point in points if point.left <= least + MAX_EXTRA_RESIDUAL]
    shortest = min(point.to_go for point in near)
    near = [point for point in near if point.to_go <= shortest + WORTH_ITS_DRIFT]
    least = min(point.left for point in near)
    near = [point for point in near if point.left <= least + WORTH_ITS_DRIFT]
    return min(near, key=lambda point: (point.drift, point.to_go, point.left))


def _between(
    judge: Judges, inside: CurvePoint, outside: CurvePoint, budget: float
) -> list[CurvePoint]:
    points, low, high = [], math.log(outside.lam), math.log(inside.lam)
    for _ in range(_HALVINGS):
        point = judge.at(math.exp((low + high) / 2))
        if spent(point) <= budget:
            points.append(point)
            high = math.log(point.lam)
        else:
            low = math.log(point.lam)
    return points
