"""What a user should know about an edit, in sentences: what is wrong, and what would help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

import torch

from ..engine.curve import Curve
from ..engine.problem import Problem
from ..text.names import quoted
from .certificate import (
    VERDICT_WORDS,
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
_PART = 2048  # retain rows compared at a time: bounds the memory


def cautions(
    problem: Problem,
    layers: Sequence[LayerFacts],
    about: Sequence[str],
    drift: Sequence[Drift] = (),
    curve: Curve | None = None,
    concepts: Sequence[ConceptResult] = (),
) -> Iterator[str]:
    """All warnings; `about`: what is to be said about single concepts."""
    if not len(problem.retain.values):
        yield "You gave no names to keep: only the empty prompt is protected."
    room, width = min(layer.room for layer in layers), problem.targets.width
    if room < TIGHT_ROOM * width and problem.settings.prior == "null_space":
        yield (
            f"The null space is nearly full ({room} of {width} dimensions left): erasure will be"
            " weak. Keep fewer names, turn IPF on, or raise the threshold."
        )
    if curve is not None and curve.budget is not None:
        yield from _about_budget(curve, curve.budget, drift, concepts)
    yield from about
    for kept, target in rivals(problem):
        yield (
            f"The kept name {quoted(kept)} is nearly the same as the concept {quoted(target)} and"
            " works against its erasure: remove it from the list."
        )


def _about_budget(
    curve: Curve, budget: float, drift: Sequence[Drift], concepts: Sequence[ConceptResult]
) -> Iterator[str]:
    """Whether the budget was enough, and whether it was kept."""
    for part in drift:
        if (
            part.group == "held_out"
            and part.where == "context"
            and part.mean > OVER_BUDGET * budget
        ):
            yield (
                f"Names that the edit did not know drift by {part.mean:.1%} on average, more than"
                f" the budget of {budget:.0%}: keep more names, or lower the budget."
            )
    weak = [one.name for one in concepts if one.verdict in ("weakened", "stands")]
    if not weak:
        return
    more = helped_by_more(curve)
    what = quoted(weak[0]) if len(weak) == 1 else f"{len(weak)} of {len(concepts)} concepts"
    text = f"A drift of {budget:.0%}, the budget, does not allow all of the erasure of {what}."
    if more is not None:
        text += (
            f" With {2 * budget:.0%}, {more.to_go:.0%} of the way to the anchor would be still to"
            " go on average "
        )
        text += f"instead of {curve.chosen.to_go:.0%}."
    elif curve.chosen.drift < UNSPENT * budget:
        text = f"{what} cannot be erased further: past a drift of {curve.chosen.drift:.1%}, "
        text += (
            "a stronger edit would cost other names much and get little nearer to the anchor in"
            " other prompts."
        )
    else:
        text += " More drift would hardly help."
    names = ", ".join(quoted(name) for name, _ in curve.in_the_way[:NAMED])
    helps = (
        "another anchor, one nearer to the concept; thorough instead of quick or normal; more"
        " strength"
    )
    yield (
        text
        + (f" The kept names most in the way: {names}; drop them if you can." if names else "")
        + f" What may also help: {helps}."
    )


def concept_cautions(
    concepts: Sequence[ConceptResult],
    alike: Sequence[float],
    *,
    in_context: bool,
    chosen: bool = False,
) -> Iterator[str]:
    """Warnings about single concepts; `alike` is |W c* - W c1| / |W c1| of each, median over
    layers.

    `chosen`: the edit was chosen on a curve, and what would help is said once for all concepts.
    """
    for concept, difference in zip(concepts, alike, strict=True):
        if concept.verdict in ("stands", "weakened") and concept.probe_median is not None:
            advice = (
                ""
                if chosen
                else (
                    " Raise rows_per_concept, or lower lam."
                    if in_context
                    else " Use the preset auto."
                )
            )
            left = (
                f"{concept.probe_median:.0%} is left in prompts that were not used to make the edit"
            )
            yield f"{quoted(concept.name)} is {verdict_in_words(concept.verdict)}: {left}.{advice}"
        if concept.energy_lost > LOSS_ABOVE:
            lost = f"{concept.energy_lost:.0%} of its edit"
            yield (
                f"Compressing the rows of {quoted(concept.name)} lost {lost}: raise"
                " rows_per_concept."
            )
        if difference < ALIKE_BELOW:
            yield (
                f"The model sees almost no difference between {quoted(concept.name)} and its"
                " anchor: choose another anchor."
            )


def fixed_text() -> str:
    """Everything that the sentences above say besides names and numbers: words that no redaction
    takes for a name.
    """
    parts = [
        part
        for one in (cautions, _about_budget, concept_cautions)
        for part in one.__code__.co_consts
    ]
    return " ".join([*(part for part in parts if isinstance(part, str)), *VERDICT_WORDS.values()])


def rivals(problem: Problem) -> list[tuple[str, str]]:
    """Kept names that nearly coincide with a target, with that target."""
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
