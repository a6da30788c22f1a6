"""What is shown while a point of the trade-off is dragged is what the next run gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import measured
import pytest
import torch
from problems import make, solve

from speed_erase.speed_ops import EraseSettings, Rows
from speed_erase.speed_ops.certificate.within import certificate_within
from speed_erase.speed_ops.errors import SpeedError
from speed_erase.speed_ops.report.panel import panel_within

LIMITS = (0.03, 0.08, 0.2, 0.45)


def run(limit: float) -> Any:
    """A run on names that fill the space, so that every erasure costs some drift."""
    problem = make(48, 4, 300, outs=(256, 512), invariants=3)
    source = torch.Generator().manual_seed(0)

    def near(values: torch.Tensor) -> Rows:
        noise = 0.03 * torch.randn(values.shape, generator=source).double()
        groups = tuple(index // 2 for index in range(len(values)))
        return Rows(values + noise, groups, ("a", "b"), (True,) * len(values))

    targets, anchors = near(problem.targets), near(problem.anchors)
    return solve(
        *(problem.weights, targets, anchors, near_names(problem.retain), problem.invariants),
        EraseSettings.preset("auto", drift_budget=limit),
        probes=(near(problem.targets), anchors),
        trial=(near(problem.targets), anchors),
    )


def near_names(values: torch.Tensor) -> Rows:
    noise = torch.randn(values.shape, generator=torch.Generator().manual_seed(1)).double()
    return Rows.single(values + 0.3 * noise, [f"name {index}" for index in range(len(values))])


@pytest.fixture(scope="module")
def runs() -> dict[float, Any]:
    return {limit: run(limit) for limit in LIMITS}


@pytest.fixture(scope="module")
def first(runs) -> Any:
    erasure = runs[0.45]
    return replace(erasure, full_certificate=erasure.certificate)


def test_at_the_limit_of_the_run_it_is_the_certificate(first):
    again = certificate_within(0.45, 1.0, first.certificate, first.alternatives)
    assert again.curve == first.certificate.curve
    for new, old in zip(again.concepts, first.certificate.concepts, strict=True):
        assert new.score == pytest.approx(old.score, abs=1e-12)
    assert [group.mean for group in again.drift] == [g.mean for g in first.certificate.drift]


@pytest.mark.parametrize("limit", LIMITS[:3])
def test_within_another_limit_it_is_what_a_run_gives(first, runs, limit):
    foreseen = certificate_within(limit, 1.0, first.certificate, first.alternatives)
    actual = runs[limit].certificate
    assert foreseen.curve.chosen == actual.curve.chosen, "the next run chooses the same point"
    assert foreseen.curve.chosen != first.certificate.curve.chosen
    for new, old in zip(foreseen.concepts, actual.concepts, strict=True):
        assert new.score == pytest.approx(old.score, abs=0.12)
    for new, old in zip(foreseen.drift, actual.drift, strict=True):
        assert new.mean == pytest.approx(old.mean, rel=0.15)


def test_less_drift_leaves_more(first):
    panels = [panel_within(first, limit, 1.0) for limit in LIMITS]
    drifts = [shown["effects"]["mean"] for shown in panels]
    scores = [max(concept["score"] for concept in shown["concepts"]) for shown in panels]
    assert drifts == sorted(drifts) and drifts[0] < drifts[-1]
    assert scores == sorted(scores, reverse=True) and scores[0] > scores[-1]


def test_half_the_strength_moves_names_half_as_far_and_no_strength_erases_nothing(first):
    full, half, none = (panel_within(first, 0.45, strength) for strength in (1.0, 0.5, 0.0))
    mean = full["effects"]["mean"]
    assert half["effects"]["mean"] == pytest.approx(mean / 2, rel=1e-3)
    assert none["verdict"] == "stands" and full["chosen"] == half["chosen"]


def test_a_run_without_a_choice_has_no_trade_off_to_drag():
    with pytest.raises(SpeedError):
        panel_within(measured.erasure(measured.certificate([measured.concept("a", 0.1)])), 0.1, 1.0)
