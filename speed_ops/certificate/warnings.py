"""What a user should know about an edit: notices with a code, a sentence and what it is about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

import torch

from ..engine.curve import Curve
from ..engine.rows import RowSet
from ..engine.settings import EraseSettings
from ..errors import Notice
from .certificate import ConceptResult, Drift, LayerFacts, helped_by_more
from .verdicts import decimals

ALIKE_BELOW = 0.05
"""Target and replacement whose outputs differ by less than this share of the target's are nearly
the same.
"""
LOSS_ABOVE = 0.1
"""Share of a concept's change that compression may give up unmentioned."""
RIVAL_WITHIN = 0.25
"""A protected row nearer to a target than this share of the target's distance to its replacement
works against the erasure.
"""
TIGHT_ROOM = 0.05
"""Share of the embedding width below which the null space is nearly full."""
UNSPENT = 0.9
"""Below this share of the limit it was not the limit that stopped the edit."""
NAMED = 3
"""Names mentioned in one sentence."""
OUTCOME_CODES = frozenset(
    {
        "over_limit",
        "limit_reached",
        "limit_hardly_helps",
        "as_erased_as_possible",
        "bare_names_only",
        "settings_too_weak",
        "rows_lost",
        "replacement_too_similar",
    }
)
"""Codes of notices that depend on what the edit achieved; the others depend on what was asked."""
_CHUNK = 2048  # protected rows compared at a time: bounds the memory


def all_warnings(
    rows: RowSet,
    settings: EraseSettings,
    layers: Sequence[LayerFacts],
    drift: Sequence[Drift],
    curve: Curve | None,
    concepts: Sequence[ConceptResult],
    differences: Sequence[float],
) -> Iterator[Notice]:
    """Everything a user should know about an edit.

    Args:
        rows: Prepared rows.
        settings: As solved.
        layers: Facts about the edit, layer by layer.
        drift: How far the protected names moved.
        curve: The trade-off, where there is one.
        concepts: Results of the erased concepts.
        differences: |W c* - W c1| / |W c1| of each concept, median over layers.
    """
    if not len(rows.retain.values):
        yield Notice(
            "You protect no names, only the blank prompt. Add a list of names to protect.",
            code="no_protected_names",
        )
    room, width = min(layer.room for layer in layers), rows.width
    if room < TIGHT_ROOM * width and settings.prior == "null_space":
        yield Notice(
            f"The protected names leave only {room} of {width} dimensions for the edit, so it will"
            " be weak. Protect fewer names, turn IPF on, or raise the threshold.",
            code="null_space_full",
            room=room,
            width=width,
        )
    yield from outcome_warnings(rows, settings, drift, curve, concepts, differences)
    for retained, target in rivals(rows):
        yield Notice(
            f"The protected name '{retained}' is nearly the same as the concept '{target}' and"
            " works against its erasure. Remove it from the list.",
            code="rival",
            name=retained,
            concept=target,
        )


def outcome_warnings(
    rows: RowSet,
    settings: EraseSettings,
    drift: Sequence[Drift],
    curve: Curve | None,
    concepts: Sequence[ConceptResult],
    differences: Sequence[float],
) -> Iterator[Notice]:
    """The notices that depend on what the edit achieved, at its present strength.

    Args:
        rows: Prepared rows.
        settings: As solved.
        drift: How far the protected names moved.
        curve: The trade-off, where there is one.
        concepts: Results of the erased concepts.
        differences: |W c* - W c1| / |W c1| of each concept, median over layers.
    """
    if curve is not None and curve.budget is not None:
        yield from _over_limit(curve.budget, drift)
    weak = [concept.name for concept in concepts if concept.verdict in ("weakened", "stands")]
    if weak:
        subject = _subject(weak, len(concepts))
        facts = {"concepts": weak, "total": len(concepts)}
        if curve is not None and curve.budget is not None:
            yield _why_not_erased(curve, curve.budget, subject, facts)
        elif any(rows.targets.in_context):
            yield Notice(
                f"The fixed settings are too weak for {subject}.",
                code="settings_too_weak",
                **facts,
            )
        else:
            yield Notice(
                f"The {settings.preset_name} preset edits only the bare name, so {subject} remains"
                " in prompts.",
                code="bare_names_only",
                preset=settings.preset_name,
                **facts,
            )
    for concept, difference in zip(concepts, differences, strict=True):
        if concept.energy_lost > LOSS_ABOVE:
            yield Notice(
                f"Compressing the rows of '{concept.name}' lost {concept.energy_lost:.0%} of its"
                " edit. Raise rows_per_concept.",
                code="rows_lost",
                concept=concept.name,
                share=concept.energy_lost,
            )
        if difference < ALIKE_BELOW:
            yield Notice(
                f"The model sees almost no difference between '{concept.name}' and its replacement."
                " Choose another replacement.",
                code="replacement_too_similar",
                concept=concept.name,
            )


def _subject(names: Sequence[str], total: int) -> str:
    if len(names) == 1:
        return f"'{names[0]}'"
    if len(names) == total:
        return "both concepts" if total == 2 else f"all {total} concepts"
    return f"{len(names)} of {total} concepts"


def _over_limit(limit: float, drift: Sequence[Drift]) -> Iterator[Notice]:
    for summary in drift:
        tested = summary.group == "held_out" and summary.where == "context"
        if tested and summary.mean > limit:
            yield Notice(
                "Names that are not on your list change more than you allowed"
                f" ({decimals(summary.mean, limit)}; limit {limit:g}). Protect more names, or"
                " choose a stricter priority.",
                code="over_limit",
                mean=summary.mean,
                limit=limit,
            )


def _why_not_erased(curve: Curve, limit: float, subject: str, facts: dict[str, object]) -> Notice:
    """Whether a higher limit would help."""
    facts = {**facts, "limit": limit, "in_the_way": [name for name, _ in curve.in_the_way[:NAMED]]}
    if helped_by_more(curve) is not None:
        return Notice(
            f"The side-effect limit kept SPEED from erasing {subject} completely. A higher limit"
            " would help.",
            code="limit_reached",
            **facts,
        )
    if curve.chosen.drift < UNSPENT * limit:
        return Notice(
            f"SPEED erased as much of {subject} as this model allows. A stronger edit would change"
            " other names without removing more.",
            code="as_erased_as_possible",
            **facts,
        )
    return Notice(
        f"The side-effect limit kept SPEED from erasing {subject} completely, and a higher limit"
        " would hardly help.",
        code="limit_hardly_helps",
        **facts,
    )


def rivals(rows: RowSet) -> list[tuple[str, str]]:
    """Protected names that nearly coincide with a target, with that target."""
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
