"""What a screen gets from a certificate: its figures, small enough to save with a workflow."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

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
    certificate = Certificate(
        concepts, (drift,), None, (), layers, (), {}, ("Mind this.",), curve=curve
    )
    return SimpleNamespace(
        certificate=certificate,
        full_certificate=certificate,
        strength=strength,
        text=lambda: "the report",
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
    shown = [(concept["name"], concept["left"]) for concept in facts["concepts"]]
    assert shown == [("b", 0.52), ("a", 0.1)]
    style = BARS["style"]
    assert facts["concepts"][0]["bars"] == [style.erased, style.stands, style.arrived]
    assert facts["counts"] == {"erased": 1, "weakened": 1} and facts["warnings"] == ["Mind this."]
    (drift,) = facts["drift"]
    assert drift["worst"] == [["Monet", 0.03]] and drift["names"] == 9
    assert facts["curve"]["chosen"] == [0.08, 0.4]
    assert facts["curve"]["left"] == [[0, 1], [0.01, 0.9], [0.08, 0.4], [0.19, 0.1]]
    assert facts["curve"]["reach"] == pytest.approx(0.3)
    assert set(facts["curve"]["offers"]) == set(BUDGETS)
    assert facts["curve"]["offers"]["some"] == [0.3, 0.19, 0.1]
    assert facts["curve"]["offers"]["little"] == [0.1, 0.08, 0.4]


def test_no_budget_offers_what_auto_would_not_choose() -> None:
    """Beyond its knee the curve costs drift for nothing, so a larger budget also chooses the
    knee.
    """
    flat = replace(CURVE, points=(*CURVE.points, CurvePoint(0.01, 0.09, 0.44, 0, 0.085)))
    facts = panel(outcome((concept("a", 0.1, "erased"),), curve=flat))
    assert facts["curve"]["offers"]["much"][1:] == [0.19, 0.1]


def test_the_way_to_go_is_shown_where_it_was_measured() -> None:
    erasure = outcome((concept("far", 0.7, "erased", 0.3), concept("near", 0.1, "erased")))
    assert [concept["to_go"] for concept in panel(erasure)["concepts"]] == [0.3, None]
    far, near = summary(erasure).splitlines()[:2]
    assert "70%" in far and "30%" in far and near.endswith("10% left")


def test_nothing_left_is_not_the_same_as_not_measured() -> None:
    gone = concept("gone", 0.0, "erased")
    unproven = replace(concept("unproven", 0.0, "unproven"), probe_median=None)
    facts = panel(outcome((gone, unproven)))
    shown = [(concept["name"], concept["left"]) for concept in facts["concepts"]]
    assert shown == [("unproven", 0.01), ("gone", 0.0)]


def test_what_to_do_next_depends_on_the_verdict() -> None:
    def next_steps(verdict: str, curve: Curve | None = None) -> list[str]:
        return panel(outcome((concept("a", 0.7, verdict),), curve=curve))["next"]

    assert next_steps("erased") == ["compare", "probe_leaks", "save"]
    assert next_steps("unproven") == ["use_auto"]
    assert next_steps("stands", CURVE) == ["allow_more_drift", "raise_strength", "change_lists"]
    flat = replace(CURVE, points=CURVE.points[:2])
    assert next_steps("stands", flat) == ["raise_strength", "change_lists"], "more buys nothing"


def test_a_thousand_concepts_stay_small() -> None:
    many = tuple(concept(f"A Painter of Some Length {i}", i / 1000, "erased") for i in range(1000))
    facts = panel(outcome(many, curve=CURVE))
    assert len(facts["concepts"]) == SHOWN_CONCEPTS and facts["counts"] == {"erased": 1000}
    assert len(json.dumps(facts)) < 30_000


def test_the_summary_is_short_and_an_erasure_from_a_file_has_no_panel() -> None:
    concepts = tuple(concept(f"c{i}", 0.1, "erased") for i in range(9))
    lines = summary(outcome(concepts, 0.5, CURVE)).splitlines()
    assert len(lines) == 7 and lines[0].startswith("c0: ")
    assert "5 concepts" in lines[4] and "4.0%" in lines[5] and lines[6].endswith("Mind this.")
    bare = SimpleNamespace(certificate=None, text=lambda: "the report")
    assert panel(bare) == {} and summary(bare) == "the report"
