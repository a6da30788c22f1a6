"""A certificate as a few plain values, small enough to be saved with a workflow: what a screen
draws from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

from ..certificate.certificate import (
    GROUPS,
    PLACES,
    Certificate,
    ConceptResult,
    Drift,
    bars_of,
    helped_by_more,
    input_lines,
    point_within,
    verdict_in_words,
)
from ..engine.settings import BUDGETS
from ..erasure import Erasure
from .trade_off import Point, trade_off

SHOWN_CONCEPTS = 100
"""The least erased ones; a screen shows no more, and a workflow should stay small."""
SHOWN_WARNINGS = 12
SHOWN_NAMES = 8
"""Names of each group that moved most."""
_SUMMARY_CONCEPTS = 4
_DIGITS = 5

Advice = Literal[
    "compare",
    "probe_leaks",
    "save",
    "use_auto",
    "allow_more_drift",
    "raise_strength",
    "change_lists",
]
"""What to do next; the screen has the words."""


def panel(erasure: Erasure) -> dict[str, Any]:
    """Everything that a screen shows about an erasure; empty for one without a certificate."""
    certificate = erasure.certificate
    if certificate is None:
        return {}
    concepts = sorted(certificate.concepts, key=lambda concept: concept.left, reverse=True)
    return {
        "strength": erasure.strength,
        "concepts": [_concept(concept) for concept in concepts[:SHOWN_CONCEPTS]],
        "counts": dict(Counter(concept.verdict for concept in concepts)),
        "drift": [_drift(group) for group in certificate.drift],
        "curve": _curve(erasure.full_certificate or certificate),
        "inputs": [input_lines(name, part)[0] for name, part in certificate.other_inputs.items()],
        "warnings": list(certificate.every_warning[:SHOWN_WARNINGS]),
        "next": list(advice(certificate)),
    }


def summary(erasure: Erasure) -> str:
    """The same in a few lines, for nodes that show only text."""
    facts = panel(erasure)
    if not facts:
        return erasure.text()
    lines = []
    for concept in facts["concepts"][:_SUMMARY_CONCEPTS]:
        line = f"{concept['name']}: {concept['words']}, {concept['left']:.0%} left"
        if concept["to_go"] is not None:
            line += f", {concept['to_go']:.0%} of the straight way to go"
        lines.append(line)
    more = sum(facts["counts"].values()) - len(lines)
    if more > 0:
        lines.append(f"and {more:,} concepts of which less is left")
    if facts["curve"] is not None:
        drift = abs(erasure.strength) * facts["curve"]["chosen"][0]
        lines.append(f"Other names drift by {drift:.1%} on average.")
    return "\n".join([*lines, *(f"Warning: {text}" for text in facts["warnings"][:1])])


def advice(certificate: Certificate) -> Iterator[Advice]:
    """What to do next, the most helpful first."""
    verdicts = {concept.verdict for concept in certificate.concepts}
    if verdicts <= {"erased"}:
        yield "compare"
        yield "probe_leaks"
        yield "save"
    if "unproven" in verdicts:
        yield "use_auto"
    if verdicts & {"weakened", "stands"}:
        if certificate.curve is not None and helped_by_more(certificate.curve) is not None:
            yield "allow_more_drift"
        yield "raise_strength"
        yield "change_lists"


def _concept(concept: ConceptResult) -> dict[str, Any]:
    bars = bars_of(concept.kind)
    return {
        "name": concept.name,
        "kind": concept.kind,
        "left": _rounded(concept.left),
        "verdict": concept.verdict,
        "words": verdict_in_words(concept.verdict),
        "to_go": None if concept.probe_to_go is None else _rounded(concept.probe_to_go),
        "bars": [bars.erased, bars.stands, bars.arrived],
    }


def _drift(group: Drift) -> dict[str, Any]:
    return {
        "group": f"{GROUPS[group.group]}, {PLACES[group.where]}",
        "names": group.names,
        "median": _rounded(group.median),
        "p95": _rounded(group.p95),
        "maximum": _rounded(group.maximum),
        "worst": [[name, _rounded(drift)] for name, drift in group.worst[:SHOWN_NAMES]],
    }


def _curve(certificate: Certificate) -> dict[str, Any] | None:
    """The trade-off at strength 1, and what each budget would give on it: [share, drift, left]."""
    curve = certificate.curve
    if curve is None:
        return None
    plot = trade_off(curve)
    offers = {}
    for word, share in BUDGETS.items():
        point = point_within(curve, share) or curve.points[0]
        offers[word] = [share, *_pair((point.drift, point.left))]
    return {
        "left": [_pair(point) for point in plot.left],
        "to_go": [_pair(point) for point in plot.to_go],
        "chosen": _pair(plot.chosen),
        "budget": plot.budget,
        "reach": plot.reach,
        "offers": offers,
    }


def _pair(point: Point) -> list[float]:
    return [_rounded(value) for value in point]


def _rounded(value: float) -> float:
    return round(float(value), _DIGITS)
