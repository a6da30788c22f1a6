"""Erasing again does not bring back what was erased before."""

from __future__ import annotations

import pytest
import torch
from problems import make, solve

from speed_erase.speed_ops import (
    EraseSettings,
    Rows,
    apply_edits,
    join,
    original_weights,
)

SETTINGS = EraseSettings(ipf=False, dpa=False, threshold=1e-3, lam=0.02)


def residual(problem, weights, rows: slice) -> float:
    left, whole = 0.0, 0.0
    for key, original in problem.weights.items():
        wanted = problem.anchors[rows] @ original.T
        left += float((problem.targets[rows] @ weights[key].T - wanted).square().sum())
        whole += float((problem.targets[rows] @ original.T - wanted).square().sum())
    return (left / whole) ** 0.5


def drift(problem, weights) -> float:
    moved = sum(
        float((problem.retain @ (weights[k] - w).T).square().sum())
        for k, w in problem.weights.items()
    )
    return (
        moved / sum(float((problem.retain @ w.T).square().sum()) for w in problem.weights.values())
    ) ** 0.5


def named(problem, rows: slice) -> tuple[Rows, Rows]:
    labels = [f"target {i}" for i in range(len(problem.targets))][rows]
    return Rows.single(problem.targets[rows], labels), Rows.single(problem.anchors[rows], labels)


@pytest.fixture(scope="module")
def problem():
    return make(256, 100, 80, outs=(96, 160), seed=5, invariants=7)


def test_ten_lists_of_ten_end_like_one_of_a_hundred(problem):
    """Incrementally, from edited weights alone: residual and drift within 1 % (absolute) of the
    joint solve.
    """
    whole = slice(0, 100)
    joint = solve(
        problem.weights, *named(problem, whole), problem.retain, problem.invariants, SETTINGS
    )
    together = apply_edits(problem.weights, joint)
    weights = dict(problem.weights)
    for start in range(0, 100, 10):
        new = slice(start, start + 10)
        # lam is relative to the mean over concepts, held ones included: the same ridge at every
        # step.
        settings = SETTINGS.replace(lam=SETTINGS.lam * 100 / (start + 10))
        earlier = named(problem, slice(0, start))[0] if start else None
        args = (*named(problem, new), problem.retain, problem.invariants, settings)
        step = solve(weights, *args, hold=earlier)
        weights = apply_edits(weights, step)
    assert residual(problem, weights, whole) == pytest.approx(
        residual(problem, together, whole), abs=0.01
    )
    assert drift(problem, weights) == pytest.approx(drift(problem, together), abs=0.01)
    assert residual(problem, weights, slice(0, 10)) == pytest.approx(
        residual(problem, together, slice(0, 10)), abs=0.01
    )


def test_without_holding_the_first_list_comes_back(problem):
    """The negative control: the same second list on edited weights, nothing held."""
    first = solve(
        problem.weights, *named(problem, slice(0, 10)), problem.retain, problem.invariants, SETTINGS
    )
    edited = apply_edits(problem.weights, first)
    before = residual(problem, edited, slice(0, 10))
    second = named(problem, slice(10, 60))
    settings = SETTINGS.replace(lam=SETTINGS.lam * 10 / 60)
    careless = solve(edited, *second, problem.retain, problem.invariants, settings)
    held = solve(
        edited,
        *second,
        problem.retain,
        problem.invariants,
        settings,
        hold=first.targets["tokens"],
    )
    after_careless = residual(problem, apply_edits(edited, careless), slice(0, 10))
    after_held = residual(problem, apply_edits(edited, held), slice(0, 10))
    assert after_held - before < 0.5 * (after_careless - before)


def test_jointly_from_an_edited_model_equals_jointly_from_the_original(problem):
    first = solve(
        problem.weights, *named(problem, slice(0, 10)), problem.retain, problem.invariants, SETTINGS
    )
    edited = apply_edits(problem.weights, first)
    restored = original_weights(edited, first)
    earlier = first.rows["tokens"]
    targets, anchors = named(problem, slice(10, 20))
    both = join([earlier.targets, targets]), join([earlier.anchors, anchors])
    again, direct = (
        solve(restored, *both, problem.retain, problem.invariants, SETTINGS),
        solve(
            problem.weights,
            *named(problem, slice(0, 20)),
            problem.retain,
            problem.invariants,
            SETTINGS,
        ),
    )
    for key in problem.weights:
        assert torch.allclose(again.delta(key), direct.delta(key), atol=1e-9)


def test_held_targets_cost_no_rank(problem):
    held = named(problem, slice(0, 30))[0]
    step = solve(
        problem.weights,
        *named(problem, slice(30, 34)),
        problem.retain,
        problem.invariants,
        SETTINGS,
        hold=held,
    )
    assert step["layer0"].rank == 4
