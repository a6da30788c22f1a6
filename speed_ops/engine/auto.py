"""What the preset `auto` settles by itself: by the number of concepts, and by the room that the retain set leaves.

The threshold decides between the two errors of an erasure. A strict one keeps every direction that any retain name uses
and leaves too little room for the targets; a loose one gives them room and lets the names drift. So `auto` takes the
strictest threshold under which the targets still reach their anchors. Probes play no part in it: they stay unseen.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from .closed_form import erasing_rows
from .null_space import KeptSpan, lower_gram, span_above
from .problem import Problem
from .rows import per_concept
from .settings import EraseSettings

THRESHOLDS = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
"""Shares of the retain set's spectral energy that may be given up, strictest first. The last leaves room for an edit
even where the names fill every direction alike; what that costs them is in the certificate."""
REACHED_BELOW = 0.1
"""Residual on the solved rows, of the worst concept, at which the targets count as having reached their anchors."""
NEARLY_AS_GOOD = 1.25
"""Where no threshold goes that far (the ridge has its share), this many times the loosest one's residual will do."""
RANK_BUDGET = 400
"""Rows of all concepts together, beyond which the LoRA would be larger than it is worth."""


def settle_rows(settings: EraseSettings, concepts: int) -> EraseSettings:
    """Fewer rows a concept when there are many concepts, so that the rank stays within the budget."""
    if settings.preset_name != "auto":
        return settings
    return settings.but(rows_per_concept=max(2, min(settings.rows_per_concept, RANK_BUDGET // max(1, concepts))))


def settle_threshold(problem: Problem) -> Problem:
    """The problem with the strictest threshold that lets the targets reach their anchors."""
    settings = problem.settings
    if settings.preset_name != "auto" or settings.threshold_mode != "relative" or not len(problem.retain.values):
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

    On the way to the anchor itself: `aim` scales the edit afterwards and has no say in the room it gets.
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
