"""A certificate as a few plain values, small enough to be kept with a workflow: what a screen draws
from.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..certificate.certificate import (
    GROUPS,
    PLACES,
    Certificate,
    ConceptResult,
    bars_of,
    helped_by_more,
    point_within,
    pooled_lines,
    verdict_in_words,
)
from ..engine.curve import CurvePoint
from ..engine.settings import BUDGETS
from ..erase import Erasure

SHOWN_CONCEPTS = 100
"""The least erased ones; a screen shows no more, and a workflow should stay small."""
SHOWN_WARNINGS = 12
SHOWN_NAMES = 8
"""Names of each group that moved most."""
_TOLD = 4
_DIGITS = 5


def panel(outcome: Erasure) -> dict[str, Any]:
    """Everything that a screen shows about an erasure; nothing for one without a certificate."""
    proof = outcome.certificate
    if proof is None:
        return {}
    results = sorted(proof.concepts, key=lambda one: -left_of(one))
    counts: dict[str, int] = {}
    for one in proof.concepts:
        counts[one.verdict] = counts.get(one.verdict, 0) + 1
    return {
        "version": 1,
        "strength": outcome.strength,
        "concepts": [_concept(one) for one in results[:SHOWN_CONCEPTS]],
        "counts": counts,
        "drift": [
            {
                "group": f"{GROUPS[part.group]}, {PLACES[part.where]}",
                "names": part.names,
                "median": _short(part.median),
                "p95": _short(part.p95),
                "maximum": _short(part.maximum),
                "mean": _short(part.mean),
                "worst": [[name, _short(value)] for name, value in part.worst[:SHOWN_NAMES]],
            }
            for part in proof.drift
        ],
        "curve": _curve(outcome),
        "pooled": "" if proof.pooled is None else pooled_lines(proof.pooled)[0],
        "warnings": list(proof.every_warning[:SHOWN_WARNINGS]),
        "next": list(advice(proof)),
        "rank": max((layer.rank for layer in proof.layers), default=0),
        "layers": len(proof.layers),
    }


def summary(outcome: Erasure) -> str:
    """The same in a few lines, for who sees no more than text."""
    facts = panel(outcome)
    if not facts:
        return outcome.text()
    worst = [
        f"{one['name']}: {one['words']}, {one['left']:.0%} left{_way(one)}"
        for one in facts["concepts"][:_TOLD]
    ]
    more = sum(facts["counts"].values()) - len(worst)
    lines = worst + ([f"and {more:,} concepts of which less is left"] if more > 0 else [])
    if facts["curve"] is not None:
        lines.append(
            f"Other names drift by {abs(outcome.strength) * facts['curve']['chosen'][0]:.1%} on"
            " average."
        )
    return "\n".join([*lines, *(f"Warning: {text}" for text in facts["warnings"][:1])])


def _way(one: dict[str, Any]) -> str:
    return "" if one["to_go"] is None else f", {one['to_go']:.0%} of the straight way to go"


def left_of(one: ConceptResult) -> float:
    """What is left of a concept, in prompts that were not used to make the edit where there are
    any.
    """
    return one.solved_median if one.probe_median is None else one.probe_median


def advice(proof: Certificate) -> Iterator[str]:
    """What to do next, in the order of how much it helps."""
    verdicts = {one.verdict for one in proof.concepts}
    if verdicts <= {"erased"}:
        yield (
            "Try it: draw the same prompt and seed with the original and with this model (SPEED"
            " Compare)."
        )
        yield "Look for other words that still draw it (SPEED Leak Probe), and add them as aliases."
        yield "Keep it: wire erasure into Save Erased Model."
        return
    if "unproven" in verdicts:
        yield "Nothing was checked in unseen prompts: use the preset auto to know."
    if verdicts & {"weakened", "stands"}:
        if proof.curve is not None and helped_by_more(proof.curve) is not None:
            yield (
                "Still shows? Allow more change ('others may change'), and see on the curve what"
                " that buys."
            )
        yield "Still shows? Raise strength in steps of 0.1; drift grows with it."
        yield "Choose an anchor nearer to the concept, or drop kept names that stand in the way."


def _concept(one: ConceptResult) -> dict[str, Any]:
    bars = bars_of(one.kind)
    return {
        "name": one.name,
        "kind": one.kind,
        "left": _short(left_of(one)),
        "checked": one.probe_median is not None,
        "verdict": one.verdict,
        "words": verdict_in_words(one.verdict),
        "to_go": None if one.probe_to_go is None else _short(one.probe_to_go),
        "bars": [bars.erased, bars.stands, bars.arrived],
    }


def _curve(outcome: Erasure) -> dict[str, Any] | None:
    """The trade-off at strength 1, and what each budget would give on it."""
    whole = outcome.full_certificate or outcome.certificate
    curve = None if whole is None else whole.curve
    if curve is None:
        return None
    offers = {
        word: point_within(curve, share) or curve.points[0] for word, share in BUDGETS.items()
    }
    return {
        "points": [[*_place(point), _short(point.to_go)] for point in curve.points],
        "chosen": _place(curve.chosen),
        "budget": curve.budget,
        "names": curve.names,
        "offers": {word: [BUDGETS[word], *_place(point)] for word, point in offers.items()},
    }


def _place(point: CurvePoint) -> list[float]:
    return [_short(point.drift), _short(point.left)]


def _short(value: float) -> float:
    return round(float(value), _DIGITS)
