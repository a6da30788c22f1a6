"""What the preset `auto` settles by itself: rows a concept, and how far to go.

The two errors of an erasure pull against each other: what is left of the targets, and how far
everything else drifts. `auto` goes along the curve of both (`curve`), as far towards the anchors as
the budget of drift allows; where more drift buys next to nothing, or goes astray, it stops earlier.
Names and contexts that it judges by are set aside for that alone: the edit is not made from them,
and the certificate judges by others.

With the null space as prior it chooses the threshold: the strictest under which the targets reach
their anchors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from ..progress import Stopwatch
from .closed_form import Span, erasing_rows
from .curve import Curve, CurvePoint, Judge, in_the_way, path_of, sketch, trace
from .layers import LayerSolver, refines
from .null_space import KeptSpan, lower_gram, span_above
from .problem import Problem
from .rows import per_concept
from .settings import EraseSettings

WORTH_ITS_DRIFT = 0.01
"""An edit that is no further than this from the best within the budget, and drifts less, is the
better.
"""
ASTRAY = 0.05
"""What is left may be this much above the least, for a shorter way to go. Pictures stop showing a
concept once its way is gone, whatever went astray meanwhile (docs/proof); but what is drawn instead
should still be near the anchor, and where a text encoder hardly knows a name, a stronger edit goes
astray faster than it arrives."""
PAYS = 0.3
"""One percent more drift must shorten the way to go by this many percent, or the curve has passed
its knee. With 0.3 none of the ten erasures that pictures judge are cut (`benchmarks.crowd
choices`), and those are cut that gain next to nothing (docs/frontier.md, random and untrained
CLIP-L); 0.4 would stop one painter in mpnet at a fifth of his drift."""
UNASKED = 0.05
"""Drift that need not pay: pictures of kept names do not show it (docs/proof)."""
FIRMER = 1 / 30
"""The second softness that is tried. A tidy text encoder leaves directions that no name uses, and
there a prior next to a null space erases more; an untidy one leaves none, and there the softer
prior does (docs/frontier.md)."""
RANK_BUDGET = 400
"""Rows of all concepts together, beyond which the LoRA would be larger than it is worth."""
_HALVINGS = 6  # of a step of the curve, to meet the budget within 1 %


def settle_rows(settings: EraseSettings, concepts: int) -> EraseSettings:
    """Fewer rows a concept when there are many concepts, so that the rank stays within the
    budget.
    """
    if settings.preset_name != "auto":
        return settings
    return settings.but(
        rows_per_concept=max(2, min(settings.rows_per_concept, RANK_BUDGET // max(1, concepts)))
    )


@dataclass(frozen=True, eq=False)
class Settled:
    """A problem with nothing left to choose."""

    problem: Problem
    curve: Curve | None = None
    """What could have been had, where one curve tells it: where the null space or prior is the same
    for all layers.
    """
    span: Span | None = None
    """What the kept names leave to the edit, found on the way."""


def settle(problem: Problem, weights: Mapping[str, Tensor], watch: Stopwatch) -> Settled:
    """Chooses for `auto`, and draws the curve wherever there is one."""
    settings = problem.settings
    auto = settings.preset_name == "auto"
    if auto and settings.prior == "null_space":
        problem = settle_threshold(problem)
        settings = problem.settings
    if (
        refines(settings)
        or settings.method != "speed"
        or settings.mu > 0
        or not (auto or problem.witnesses)
    ):
        return Settled(problem)
    solver = LayerSolver(problem, problem.pairs, watch, {})
    with watch.part("curve"):
        layers = sketch(weights, problem.targets.values)
    if not auto or settings.prior == "null_space":
        return _traced(problem, solver, layers, watch)
    found = [_traced(problem, solver, layers, watch)]
    firmer = replace(problem, settings=settings.but(softness=FIRMER * settings.softness))
    found.append(_traced(firmer, LayerSolver(firmer, problem.pairs, watch, {}), layers, watch))
    best = preferred([one.curve.chosen for one in found if one.curve])
    return next(one for one in found if one.curve and one.curve.chosen == best)


def _traced(problem: Problem, solver: LayerSolver, layers: Tensor, watch: Stopwatch) -> Settled:
    """One softness: its curve, and the point on it."""
    settings = problem.settings
    span = solver.span_for_all()
    with watch.part("curve"):
        path = path_of(*solver.system(span))
        points, judge = trace(problem, path, layers)
        free = settings.preset_name == "auto" and settings.prior != "null_space"
        chosen = choose(points, judge, settings.drift_budget) if free else judge.at(settings.lam)
        curve = Curve(
            points=points,
            chosen=chosen,
            budget=settings.drift_budget if free else None,
            names=len(judge.names.names),
            unseen=problem.spared,
            in_the_way=in_the_way(problem, path, layers, points[-1].lam),
        )
    return Settled(replace(problem, settings=settings.but(lam=chosen.lam)), curve, span)


def choose(points: tuple[CurvePoint, ...], judge: Judge, budget: float) -> CurvePoint:
    """The furthest way within the budget and up to the knee, or nearly as far for less drift."""
    budget = min(budget, knee(points))
    within = [point for point in points if _spent(point) <= budget]
    beyond = points[len(within) :] if within == list(points[: len(within)]) else ()
    if within and beyond:
        within += _between(judge, within[-1], beyond[0], budget)
    if not within:  # not even the most careful edit of the curve: go on until the budget is met
        lam = points[0].lam
        while _spent(point := judge.at(lam)) > budget:
            lam *= max(2.0, _spent(point) / budget)
        within = [point]
    return preferred(within)


def knee(points: Sequence[CurvePoint]) -> float:
    """The drift beyond which no more of it pays, anywhere on the curve.

    Of the whole curve, because the first drift buys little on every one: the way shortens fastest
    in the middle.
    """
    paid = [_spent(after) for before, after in pairwise(points) if _pays(before, after)]
    return max([UNASKED, *paid])


def _pays(before: CurvePoint, after: CurvePoint) -> bool:
    """Whether a step along the curve is worth its drift: by the way to go or, as in a tidy encoder
    where that is soon gone, by what is left."""
    if after.drift <= UNASKED:
        return True
    price = PAYS * math.log(after.drift / max(before.drift, UNASKED * WORTH_ITS_DRIFT))
    return any(
        math.log(max(old, WORTH_ITS_DRIFT) / max(new, WORTH_ITS_DRIFT)) >= price
        for old, new in ((before.to_go, after.to_go), (before.left, after.left))
    )


def preferred(points: Sequence[CurvePoint]) -> CurvePoint:
    """Of those that did not go astray the one with the shortest way to go, then that which leaves
    least; each of it or nearly so for less drift."""
    least = min(point.left for point in points)
    near = [point for point in points if point.left <= least + ASTRAY]
    shortest = min(point.to_go for point in near)
    near = [point for point in near if point.to_go <= shortest + WORTH_ITS_DRIFT]
    least = min(point.left for point in near)
    near = [point for point in near if point.left <= least + WORTH_ITS_DRIFT]
    return min(near, key=lambda point: (point.drift, point.to_go, point.left))


def _spent(point: CurvePoint) -> float:
    """Drift with its uncertainty: few witnesses must not overspend."""
    return point.drift + point.spread


def _between(
    judge: Judge, inside: CurvePoint, outside: CurvePoint, budget: float
) -> list[CurvePoint]:
    found, low, high = [], math.log(outside.lam), math.log(inside.lam)
    for _ in range(_HALVINGS):
        point = judge.at(math.exp((low + high) / 2))
        if _spent(point) <= budget:
            found.append(point)
            high = math.log(point.lam)
        else:
            low = math.log(point.lam)
    return found


THRESHOLDS = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
"""Shares of the retain set's spectral energy that may be given up, strictest first. The last leaves
room for an edit even where the names fill every direction alike; what that costs them is in the
certificate."""
REACHED_BELOW = 0.1
"""Residual on the solved rows, of the worst concept, at which the targets count as having reached
their anchors.
"""
NEARLY_AS_GOOD = 1.25
"""Where no threshold goes that far (the ridge has its share), this many times the loosest one's
residual will do.
"""


def settle_threshold(problem: Problem) -> Problem:
    """The problem with the strictest threshold that lets the targets reach their anchors."""
    settings = problem.settings
    if settings.threshold_mode != "relative" or not len(problem.retain.values):
        return problem
    rows = problem.retain.weights().sqrt()[:, None] * problem.retain.values
    values, vectors = torch.linalg.eigh(lower_gram(rows.T))

    def residual(threshold: float) -> float:
        return _worst_residual(problem, span_above(values, vectors, threshold, "relative"))

    enough = max(REACHED_BELOW, NEARLY_AS_GOOD * residual(THRESHOLDS[-1]))
    chosen = next(threshold for threshold in THRESHOLDS if residual(threshold) <= enough)
    return replace(problem, settings=settings.but(threshold=chosen))


def _worst_residual(problem: Problem, span: KeptSpan) -> float:
    """The largest share of a concept's change that the edit would miss, in the embedding space.

    On the way to the anchor itself: `aim` scales the edit afterwards and has no say in the room it
    gets.
    """
    targets, change = problem.pairs.mean_scaled()
    constraints = problem.constraints if problem.settings.iec else problem.constraints[:0]
    down = erasing_rows(targets, span, constraints, problem.settings.lam, problem.settings.mu)
    missing = (targets @ down.T) @ change - change
    return float((_sizes(problem, missing) / _sizes(problem, change).clamp(min=1e-30)).max().sqrt())


def _sizes(problem: Problem, rows: Tensor) -> Tensor:
    """Squared size of each concept to erase."""
    pairs = problem.pairs
    groups = rows.new_tensor(pairs.groups).long()
    return per_concept(rows.square().sum(dim=1), groups, pairs.concepts)[: pairs.erased]
