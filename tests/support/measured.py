"""Certificates and erasures with chosen numbers, for tests of what is shown about them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from speed_erase.speed_ops.certificate.certificate import (
    Certificate,
    ConceptResult,
    Drift,
    LayerFacts,
)
from speed_erase.speed_ops.certificate.summary import summarize
from speed_erase.speed_ops.engine.curve import Curve, CurvePoint

LEFT = {"erased": 0.1, "weakened": 0.52, "stands": 0.9}
"""What must remain of a style for a verdict."""


def concept(name: str, left: float | None, to_go: float | None = None) -> ConceptResult:
    return ConceptResult(name, 0.01, 0.02, left, left, 0.0, "style", to_go)


def with_verdict(name: str, verdict: str) -> ConceptResult:
    result = concept(name, LEFT.get(verdict))
    assert result.verdict == verdict
    return result


def drift(
    group: str = "kept",
    mean: float = 0.012,
    worst: tuple[tuple[str, float], ...] = (("Monet", 0.03),),
) -> Drift:
    maximum = worst[0][1] if worst else mean
    return Drift(group, "context", 9, mean, maximum, maximum, worst, mean)


def curve(chosen: int = 10, budget: float | None = 0.45) -> Curve:
    points = tuple(
        CurvePoint(10 / n, 0.08 + 0.9 * math.exp(-n / 4), 0.00125 * n * n, 0.0, math.exp(-n / 3))
        for n in range(1, 40)
    )
    return Curve(points, points[chosen], budget, 32, True, (("Monet", 0.3),))


def certificate(
    concepts: Sequence[ConceptResult], groups: Sequence[Drift] | None = None, **changes: Any
) -> Certificate:
    values: dict[str, Any] = {
        "concepts": tuple(concepts),
        "drift": (drift(),) if groups is None else tuple(groups),
        "sot_drift": 1e-16,
        "null_text_drift": (1e-16,),
        "layers": (LayerFacts("diffusion_model.l0.weight", 1, 0, 5, 4, 0.1),),
        "rounds": (),
        "seconds": {"solve": 1.0},
        "warnings": (),
    }
    return Certificate(**(values | changes))


def erasure(proof: Certificate, strength: float = 1.0, **changes: Any) -> Any:
    """As much of an `Erasure` as its outputs read."""
    replacements = ("art",) * len(proof.concepts)
    recipe = SimpleNamespace(
        package_version="0.1.0",
        base_hash="ab" * 32,
        encoder_hash="cd" * 32,
        blocklists=(),
        clip_skip=None,
        retain=[SimpleNamespace(label="artists", names=None)],
    )
    values: dict[str, Any] = {
        "certificate": proof,
        "full_certificate": proof,
        "alternatives": None,
        "strength": strength,
        "summary": lambda: summarize(proof, replacements),
        "recipe": recipe,
        "architecture": SimpleNamespace(title="Stable Diffusion 1.x", name="sd1"),
        "text_report": None,
        "notes": (),
    }
    return SimpleNamespace(**(values | changes))
