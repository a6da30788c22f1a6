"""What a certificate would be within another limit, before anything is solved or encoded again."""

from __future__ import annotations

from dataclasses import replace

from .certificate import Alternatives, Certificate
from .warnings import OUTCOME_CODES


def certificate_within(
    limit: float, strength: float, full: Certificate, alternatives: Alternatives
) -> Certificate:
    """The certificate of a run with another limit and strength, as far as it can be foreseen.

    At the limit and strength of the certificate it is the certificate. Elsewhere what was measured
    changes by as much as it does on a sketch of all layers, in the same prompts.

    Args:
        limit: The most drift to allow.
        strength: What the edit is to be applied with.
        full: The certificate at strength 1, with a curve.
        alternatives: What `auto` would choose within other limits.
    """
    assert full.curve is not None and full.curve.budget is not None
    chosen, other = alternatives.within(full.curve.budget), alternatives.within(limit, strength)
    size = abs(strength) * (
        other.point.drift / chosen.point.drift if chosen.point.drift else float(limit > 0)
    )
    concepts = []
    for index, concept in enumerate(full.concepts):
        left = other.left[index] - chosen.left[index]
        to_go = other.to_go[index] - chosen.to_go[index]
        concepts.append(
            replace(
                concept,
                solved_median=max(0.0, concept.solved_median + left),
                probe_median=_moved(concept.probe_median, left),
                probe_to_go=_moved(concept.probe_to_go, to_go),
            )
        )
    return replace(
        full,
        concepts=tuple(concepts),
        drift=tuple(group.times(size) for group in full.drift),
        curve=replace(full.curve, chosen=other.point, budget=limit),
        warnings=tuple(notice for notice in full.warnings if notice.code not in OUTCOME_CODES),
    )


def _moved(measured: float | None, change: float) -> float | None:
    return None if measured is None else max(0.0, measured + change)
