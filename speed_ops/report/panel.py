"""A certificate as plain values, small enough to be saved with a workflow: what the UI shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..certificate.certificate import Certificate, ConceptResult, Drift, offer
from ..certificate.summary import (
    LEVEL_WORDS,
    SideEffects,
    Summary,
    advice_in_words,
    group_title,
    measurements,
    summarize,
)
from ..certificate.verdicts import verdict_in_words
from ..certificate.within import certificate_within
from ..engine.settings import PRIORITIES
from ..erasure import Erasure
from ..errors import NotFoundError, Notice
from ..inputs import INPUT_TITLES
from .trade_off import Point, trade_off

SHOWN_CONCEPTS = 100
"""The least erased ones; the UI shows no more, and a workflow should stay small."""
SHOWN_WARNINGS = 12
SHOWN_NAMES = 8
"""Names per group that moved most."""
SHOWN_DETAILS = 40
_DIGITS = 5


def panel(erasure: Erasure) -> dict[str, Any]:
    """Everything that the UI shows about an erasure; empty for one without a certificate."""
    certificate, summary = erasure.certificate, erasure.summary()
    if certificate is None or summary is None:
        return {}
    return {
        "strength": erasure.strength,
        **_answers(summary),
        "blank_prompt_unchanged": summary.blank_prompt_unchanged,
        "why": None if summary.why is None else summary.why.to_json(),
        "next": [advice.to_json() for advice in advice_in_words(summary.advice)],
        "warnings": [n.to_json() for n in certificate.every_warning[:SHOWN_WARNINGS]],
        "drift": [_drift(group) for group in certificate.drift],
        "curve": _curve(erasure),
        "details": [line.to_json() for line in _measured(certificate)][:SHOWN_DETAILS],
    }


def panel_within(erasure: Erasure, limit: float, strength: float) -> dict[str, Any]:
    """What the panel of another limit and strength would show, without a run.

    Args:
        erasure: The run's result.
        limit: The most drift to allow.
        strength: What the edit is to be applied with.
    """
    full = erasure.full_certificate
    if full is None or erasure.alternatives is None:
        raise NotFoundError("Only a run with the preset auto has a trade-off to choose from.")
    other = certificate_within(limit, strength, full, erasure.alternatives)
    assert other.curve is not None
    point = other.curve.chosen
    return {
        **_answers(summarize(other, erasure.replacements)),
        "chosen": [_rounded(value) for value in (point.drift, point.left, point.to_go)],
    }


def _measured(certificate: Certificate) -> Iterator[Notice]:
    """The measurements at every text input."""
    yield from measurements(certificate)
    for name, part in certificate.other_inputs.items():
        for line in measurements(part):
            yield Notice(f"{INPUT_TITLES[name]}: {line}", **line.data, input=name)


def _answers(summary: Summary) -> dict[str, Any]:
    effects = summary.side_effects
    return {
        "verdict": summary.verdict,
        "concepts": [_concept(*pair) for pair in summary.concepts[:SHOWN_CONCEPTS]],
        "counts": dict(summary.counts),
        "effects": None if effects is None else _side_effects(effects),
    }


def _concept(concept: ConceptResult, replacement: str | None) -> dict[str, Any]:
    return {
        "name": concept.name,
        "replacement": replacement,
        "kind": concept.kind,
        "score": None if concept.score is None else _rounded(concept.score),
        "verdict": concept.verdict,
        "words": verdict_in_words(concept.verdict),
    }


def _side_effects(effects: SideEffects) -> dict[str, Any]:
    return {
        "words": LEVEL_WORDS[effects.level],
        "mean": _rounded(effects.mean),
        "limit": effects.limit,
        "worst": effects.worst_words,
        "affected": [name for name, _ in effects.most_affected],
    }


def _drift(group: Drift) -> dict[str, Any]:
    return {
        "group": group_title(group),
        "names": group.names,
        "median": _rounded(group.median),
        "p95": _rounded(group.p95),
        "maximum": _rounded(group.maximum),
        "worst": [[name, _rounded(drift)] for name, drift in group.worst[:SHOWN_NAMES]],
    }


def _curve(erasure: Erasure) -> dict[str, Any] | None:
    """The trade-off at strength 1, and what each priority would choose: [limit, drift, left]."""
    certificate = erasure.full_certificate or erasure.certificate
    if certificate is None or certificate.curve is None:
        return None
    curve = certificate.curve
    plot = trade_off(curve)
    offers = {}
    for name, limit in PRIORITIES.items():
        offers[name] = [limit, *_pair(offer(curve, limit))]
    return {
        "left": [_pair(point) for point in plot.left],
        "to_go": [_pair(point) for point in plot.to_go],
        "chosen": _pair(plot.chosen),
        "budget": plot.budget,
        "reach": max(plot.reach, plot.budget or 0.0),
        "offers": offers,
        "live": erasure.alternatives is not None,
    }


def _pair(point: Point) -> list[float]:
    return [_rounded(value) for value in point]


def _rounded(value: float) -> float:
    return round(float(value), _DIGITS)
