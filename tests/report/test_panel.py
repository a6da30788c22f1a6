"""What a screen gets of a certificate: its figures, small enough to be saved with a workflow."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from speed_erase.speed_ops.certificate.certificate import (
    BARS,
    Certificate,
    ConceptResult,
    Drift,
    LayerFacts,
)
from speed_erase.speed_ops.engine.curve import Curve, CurvePoint
from speed_erase.speed_ops.engine.settings import BUDGETS
from speed_erase.speed_ops.report.panel import SHOWN_CONCEPTS, panel, summary


def outcome(
    concepts: tuple[ConceptResult, ...], strength: float = 1.0, curve: Curve | None = None
) -> Any:
    drift = Drift("kept", "context", 9, 0.01, 0.02, 0.03, (("Monet", 0.03),), 0.012)
    layers = (LayerFacts("layer", 9, 0, 300, 8, 0.1),)
    proof = Certificate(concepts, (drift,), None, (), layers, (), {}, ("Mind this.",), curve=curve)
    whole = replace(proof, curve=curve)
    return SimpleNamespace(
        certificate=proof, full_certificate=whole, strength=strength, text=lambda: "the report"
    )


def concept(name: str, left: float, verdict: Any, to_go: float | None = None) -> ConceptResult:
    return ConceptResult(name, verdict, 0.01, 0.02, left, left, 0.0, "style", to_go)


CURVE = Curve(
    points=(
        CurvePoint(10, 0.9, 0.01, 0, 0.9),
        CurvePoint(1, 0.4, 0.08, 0, 0.4),
        CurvePoint(0.1, 0.1, 0.19, 0, 0.1),
    ),
    chosen=CurvePoint(1, 0.4, 0.08, 0, 0.4),
    budget=0.1,
    names=20,
    unseen=True,
    in_the_way=(),
)


def test_the_figures_are_the_certificates_and_the_least_erased_come_first() -> None:
    facts = panel(
        outcome((concept("a", 0.1, "erased"), concept("b", 0.52, "weakened")), curve=CURVE)
    )
    assert [(one["name"], one["left"], one["words"]) for one in facts["concepts"]] == [
        ("b", 0.52, "weakened"),
        ("a", 0.1, "erased"),
    ]
    style = BARS["style"]
    assert facts["concepts"][0]["bars"] == [style.erased, style.stands, style.arrived]
    assert facts["counts"] == {"erased": 1, "weakened": 1} and facts["warnings"] == ["Mind this."]
    assert (
        facts["drift"][0]["worst"] == [["Monet", 0.03]]
        and facts["drift"][0]["group"] == "Kept names, in prompts"
    )
    assert facts["curve"]["chosen"] == [0.08, 0.4]
    assert set(facts["curve"]["offers"]) == set(BUDGETS)
    assert facts["curve"]["offers"]["some"] == [0.3, 0.19, 0.1]
    assert facts["curve"]["offers"]["little"] == [0.1, 0.08, 0.4]


def test_no_budget_offers_what_auto_would_not_choose() -> None:
    """Beyond its knee the curve costs drift and gets on no further, so a larger budget chooses the
    knee as well.
    """
    flat = replace(CURVE, points=(*CURVE.points, CurvePoint(0.01, 0.09, 0.44, 0, 0.085)))
    facts = panel(outcome((concept("a", 0.1, "erased"),), curve=flat))
    assert facts["curve"]["offers"]["much"][1:] == [0.19, 0.1]


def test_the_way_to_go_is_told_where_it_was_measured() -> None:
    found = outcome((concept("far", 0.7, "erased", 0.3), concept("near", 0.1, "erased")))
    assert [one["to_go"] for one in panel(found)["concepts"]] == [0.3, None]
    lines = summary(found).splitlines()
    assert lines[:2] == [
        "far: erased, 70% left, 30% of the straight way to go",
        "near: erased, 10% left",
    ]


def test_what_to_do_next_depends_on_the_verdict() -> None:
    good = panel(outcome((concept("a", 0.1, "erased"),)))["next"]
    assert any("Save Erased Model" in text for text in good) and not any(
        "strength" in text for text in good
    )
    bad = panel(outcome((concept("a", 0.7, "stands"),), curve=CURVE))["next"]
    assert "Allow more change" in bad[0] and any("Raise strength" in text for text in bad)
    flat = replace(CURVE, points=CURVE.points[:2])
    assert not any(
        "Allow more" in text
        for text in panel(outcome((concept("a", 0.7, "stands"),), curve=flat))["next"]
    )


def test_a_thousand_concepts_stay_small() -> None:
    many = tuple(concept(f"A Painter of Some Length {i}", i / 1000, "erased") for i in range(1000))
    facts = panel(outcome(many, curve=CURVE))
    assert len(facts["concepts"]) == SHOWN_CONCEPTS and facts["counts"] == {"erased": 1000}
    assert len(json.dumps(facts)) < 30_000


def test_the_summary_is_short_and_an_erasure_from_a_file_has_no_panel() -> None:
    lines = summary(
        outcome(tuple(concept(f"c{i}", 0.1, "erased") for i in range(9)), 0.5, CURVE)
    ).splitlines()
    assert lines[0] == "c0: erased, 10% left" and "and 5 concepts" in lines[4]
    assert "drift by 4.0%" in lines[5] and lines[6] == "Warning: Mind this."
    bare = SimpleNamespace(certificate=None, text=lambda: "the report")
    assert panel(bare) == {} and summary(bare) == "the report"
