"""What a user should know about an edit, in sentences: what is wrong, and what would help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

import torch

from ..engine.curve import Curve
from ..engine.rows import RowSet
from ..engine.settings import EraseSettings
from .certificate import (
    ConceptResult,
    Drift,
    LayerFacts,
    helped_by_more,
    verdict_in_words,
)

ALIKE_BELOW = 0.05
"""Target and anchor whose outputs differ by less than this share of the target's are nearly the
same.
"""
LOSS_ABOVE = 0.1
"""Share of a concept's change that compression may give up unmentioned."""
RIVAL_WITHIN = 0.25
"""A retain row nearer to a target than this share of the target's way to its anchor fights the
erasure.
"""
TIGHT_ROOM = 0.05
"""Share of the embedding width below which the null space is nearly full."""
OVER_BUDGET = 1.1
"""Names that the choice did not know may drift this many times the budget before it is called
overspent.
"""
UNSPENT = 0.9
"""Below this share of the budget it was not the budget that stopped the edit."""
NAMED = 3
"""Names mentioned in one sentence."""
_CHUNK = 2048  # retain rows compared at a time: bounds the memory


def all_warnings(
    rows: RowSet,
    settings: EraseSettings,
    layers: Sequence[LayerFacts],
    drift: Sequence[Drift],
    curve: Curve | None,
    concepts: Sequence[ConceptResult],
    differences: Sequence[float],
) -> Iterator[str]:
    """Everything a user should know about an edit.

    Args:
        rows: Prepared rows.
        settings: As solved.
        layers: Facts about the edit, layer by layer.
        drift: How far the kept names moved.
        curve: The trade-off, where there is one.
        concepts: Results of the erased concepts.
        differences: |W c* - W c1| / |W c1| of each concept, median over layers.
    """
    if not len(rows.retain.values):
        yield "You gave no names to keep: only the empty prompt is protected."
    room, width = min(layer.room for layer in layers), rows.width
    if room < TIGHT_ROOM * width and settings.prior == "null_space":
        yield (
            f"The null space is nearly full ({room} of {width} dimensions left): erasure will be"
            " weak. Keep fewer names, turn IPF on, or raise the threshold."
        )
    if curve is not None and curve.budget is not None:
        yield from _budget_warnings(curve, curve.budget, drift, concepts)
    yield from concept_warnings(rows, settings, concepts, differences)
    for retained, target in rivals(rows):
        yield (
            f"The kept name '{retained}' is nearly the same as the concept '{target}' and works"
            " against its erasure: remove it from the list."
        )


def _budget_warnings(
    curve: Curve, budget: float, drift: Sequence[Drift], concepts: Sequence[ConceptResult]
) -> Iterator[str]:
    """Whether the budget was enough, and whether it was kept."""
    for summary in drift:
        unseen = summary.group == "held_out" and summary.where == "context"
        if unseen and summary.mean > OVER_BUDGET * budget:
            yield (
                f"Names that the edit did not know drift by {summary.mean:.1%} on average, more"
                f" than the budget of {budget:.0%}: keep more names, or lower the budget."
            )
    weak = [concept.name for concept in concepts if concept.verdict in ("weakened", "stands")]
    if not weak:
        return
    more = helped_by_more(curve)
    subject = f"'{weak[0]}'" if len(weak) == 1 else f"{len(weak)} of {len(concepts)} concepts"
    text = f"A drift of {budget:.0%}, the budget, does not allow all of the erasure of {subject}."
    if more is not None:
        text += (
            f" With {2 * budget:.0%}, {more.to_go:.0%} of the way to the anchor would be still to"
            " go on average "
        )
        text += f"instead of {curve.chosen.to_go:.0%}."
    elif curve.chosen.drift < UNSPENT * budget:
        text = f"{subject} cannot be erased further: past a drift of {curve.chosen.drift:.1%}, "
        text += (
            "a stronger edit would cost other names much and get little nearer to the anchor in"
            " other prompts."
        )
    else:
        text += " More drift would hardly help."
    names = ", ".join(f"'{name}'" for name, _ in curve.in_the_way[:NAMED])
    helps = (
        "another anchor, one nearer to the concept; thorough instead of quick or normal; more"
        " strength"
    )
    yield (
        text
        + (f" The kept names most in the way: {names}; drop them if you can." if names else "")
        + f" What may also help: {helps}."
    )


def concept_warnings(
    rows: RowSet,
    settings: EraseSettings,
    concepts: Sequence[ConceptResult],
    differences: Sequence[float],
) -> Iterator[str]:
    """Warnings about single concepts.

    Args:
        rows: Prepared rows.
        settings: As solved.
        concepts: Results of the erased concepts.
        differences: |W c* - W c1| / |W c1| of each concept, median over layers.
    """
    if settings.preset_name == "auto" and settings.prior == "soft":
        advice = ""  # chosen on a curve: what would help is said once for all concepts
    elif any(rows.targets.in_context):
        advice = " Raise rows_per_concept, or lower lam."
    else:
        advice = " Use the preset auto."
    for concept, difference in zip(concepts, differences, strict=True):
        if concept.verdict in ("stands", "weakened") and concept.probe_median is not None:
            left = (
                f"{concept.probe_median:.0%} is left in prompts that were not used to make the edit"
            )
            yield f"'{concept.name}' is {verdict_in_words(concept.verdict)}: {left}.{advice}"
        if concept.energy_lost > LOSS_ABOVE:
            lost = f"{concept.energy_lost:.0%} of its edit"
            yield (f"Compressing the rows of '{concept.name}' lost {lost}: raise rows_per_concept.")
        if difference < ALIKE_BELOW:
            yield (
                f"The model sees almost no difference between '{concept.name}' and its"
                " anchor: choose another anchor."
            )


def rivals(rows: RowSet) -> list[tuple[str, str]]:
    """Kept names that nearly coincide with a target, with that target."""
    if not len(rows.retain.values):
        return []
    names, target_names = rows.retain.labels(), rows.targets.labels()
    distance = (rows.anchors.values - rows.targets.values).norm(dim=1)
    pairs = set()
    for start, chunk in zip(count(0, _CHUNK), rows.retain.values.split(_CHUNK), strict=False):
        near = torch.cdist(rows.targets.values, chunk) < RIVAL_WITHIN * distance[:, None]
        for target, retained in near.nonzero().tolist():
            group = rows.retain.groups[start + retained]
            pairs.add((names[group], target_names[rows.targets.groups[target]]))
    return sorted(pairs)
