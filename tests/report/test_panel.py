"""What a panel gets from a certificate: its figures, small enough to save with a workflow."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import measured
import pytest

from speed_erase.speed_ops.certificate.certificate import helped_by_more
from speed_erase.speed_ops.engine.curve import Curve, CurvePoint
from speed_erase.speed_ops.engine.settings import PRIORITIES
from speed_erase.speed_ops.errors import Notice
from speed_erase.speed_ops.report.panel import SHOWN_CONCEPTS, panel

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


def facts_of(*concepts: Any, **changes: Any) -> dict[str, Any]:
    return panel(measured.erasure(measured.certificate(concepts, **changes)))


def test_the_figures_are_the_certificates_and_the_least_erased_come_first() -> None:
    mind = Notice("Mind this.", code="rival")
    facts = facts_of(
        measured.concept("a", 0.1), measured.concept("b", 0.52), curve=CURVE, warnings=(mind,)
    )
    assert [item["name"] for item in facts["concepts"]] == ["b", "a"]
    assert facts["concepts"][0]["score"] == pytest.approx(0.52 / 0.48, abs=1e-4)
    assert facts["counts"] == {"erased": 1, "weakened": 1} and facts["verdict"] == "weakened"
    assert [warning["code"] for warning in facts["warnings"]] == ["rival"]
    (drift,) = facts["drift"]
    assert drift["worst"] == [["Monet", 0.03]] and drift["names"] == 9
    assert facts["curve"]["chosen"] == [0.08, 0.4]
    assert facts["curve"]["left"] == [[0, 1], [0.01, 0.9], [0.08, 0.4], [0.19, 0.1]]


def test_a_stricter_priority_is_never_a_better_offer() -> None:
    """Among the offers a lower limit costs no more drift and removes no more."""
    for chosen in (CURVE.chosen, CurvePoint(1.2, 0.42, 0.075, 0.02, 0.42)):
        facts = facts_of(measured.concept("a", 0.1), curve=replace(CURVE, chosen=chosen))
        offers = sorted(facts["curve"]["offers"].values())
        assert set(facts["curve"]["offers"]) == set(PRIORITIES)
        for (_, drift, left), (_, more_drift, less_left) in pairwise(offers):
            assert drift <= more_drift and left >= less_left


def test_no_priority_offers_what_auto_would_not_choose() -> None:
    """Beyond its knee the curve costs drift for nothing, so a higher limit also chooses the
    knee.
    """
    flat = replace(CURVE, points=(*CURVE.points, CurvePoint(0.01, 0.09, 0.44, 0, 0.085)))
    facts = facts_of(measured.concept("a", 0.1), curve=flat)
    assert facts["curve"]["offers"]["erase-fully"][1:] == [0.19, 0.1]


def test_a_perfect_score_is_not_a_missing_one() -> None:
    facts = facts_of(measured.concept("gone", 0.0), measured.concept("untested", None))
    assert [(item["name"], item["score"] is None) for item in facts["concepts"]] == [
        ("untested", True),
        ("gone", False),
    ]


def test_what_to_do_next_depends_on_the_verdict() -> None:
    def next_steps(left: float | None, curve: Curve | None = None) -> list[str]:
        return [item["code"] for item in facts_of(measured.concept("a", left), curve=curve)["next"]]

    assert next_steps(0.1) == ["compare", "find_leaks"]
    assert next_steps(None) == ["use_auto"]
    assert helped_by_more(CURVE) is not None and next_steps(0.9, CURVE)[0] == "erase_fully"
    flat = replace(CURVE, points=CURVE.points[:2])
    assert helped_by_more(flat) is None and "erase_fully" not in next_steps(0.9, flat)


def test_a_thousand_concepts_stay_small() -> None:
    many = [measured.concept(f"A Painter of Some Length {i}", i / 5000) for i in range(1000)]
    facts = facts_of(*many, curve=CURVE)
    assert len(facts["concepts"]) == SHOWN_CONCEPTS and facts["counts"] == {"erased": 1000}
    assert len(json.dumps(facts)) < 60_000


def test_an_erasure_from_a_file_has_no_panel() -> None:
    assert panel(SimpleNamespace(certificate=None, summary=lambda: None)) == {}  # type: ignore[arg-type]
