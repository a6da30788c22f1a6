"""The certificate's warnings, in plain words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

import torch

from .certificate import ConceptResult, LayerFacts
from .problem import Problem

ALIKE_BELOW = 0.05
"""Target and anchor whose outputs differ by less than this share of the target's are nearly the same."""
LOSS_ABOVE = 0.05
"""Share of a concept's change that compression may give up unmentioned."""
RIVAL_WITHIN = 0.25
"""A retain row nearer to a target than this share of the target's way to its anchor fights the erasure."""
TIGHT_ROOM = 0.05
"""Share of the embedding width below which the null space is nearly full."""
_PART = 2048  # retain rows compared at a time: bounds the memory


def cautions(
    problem: Problem, concepts: Sequence[ConceptResult], layers: Sequence[LayerFacts], alike: Sequence[float]
) -> Iterator[str]:
    """What a user should know; `alike` is |W c* - W c1| / |W c1| of each concept, median over layers."""
    if not len(problem.retain.values):
        yield "No retain set was given: nothing but the empty prompt is protected."
    room, width = min(layer.room for layer in layers), problem.targets.width
    if room < TIGHT_ROOM * width:
        yield (
            f"The null space is nearly full ({room} of {width} dimensions left): erasure will be weak. "
            "Use fewer retain names, switch IPF on, or raise the threshold."
        )
    for concept, share in zip(concepts, alike, strict=True):
        yield from _about(concept, share, in_context=any(problem.targets.in_context))
    for kept, target in rivals(problem):
        yield f"The retain name {kept!r} is nearly the same as the target {target!r} and fights its erasure: drop it."


def _about(concept: ConceptResult, alike: float, in_context: bool) -> Iterator[str]:
    if concept.verdict in ("stands", "weakened") and concept.probe_median is not None:
        yield (
            f"{concept.name!r} survives in context: {concept.probe_median:.0%} of it remains in prompts that the solve "
            "did not see. " + ("Raise rows_per_concept, or lower lam." if in_context else "Erase with rows in context.")
        )
    if concept.energy_lost > LOSS_ABOVE:
        yield f"Compressing {concept.name!r} gave up {concept.energy_lost:.0%} of its change: raise rows_per_concept."
    if alike < ALIKE_BELOW:
        yield f"{concept.name!r} and its anchor are nearly equal for the model: choose another anchor."


def rivals(problem: Problem) -> list[tuple[str, str]]:
    """Retain names that nearly coincide with a target, with that target."""
    if not len(problem.retain.values):
        return []
    kept_names, target_names = problem.retain.labels(), problem.targets.labels()
    way = (problem.anchors.values - problem.targets.values).norm(dim=1)
    found = set()
    for start, part in zip(count(0, _PART), problem.retain.values.split(_PART), strict=False):
        near = torch.cdist(problem.targets.values, part) < RIVAL_WITHIN * way[:, None]
        for target, kept in near.nonzero().tolist():
            group = problem.retain.groups[start + kept]
            found.add((kept_names[group], target_names[problem.targets.groups[target]]))
    return sorted(found)
