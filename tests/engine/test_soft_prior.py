"""The soft prior: its own dense equations, what it turns into at its ends, and what it keeps
exactly.
"""

from __future__ import annotations

import numpy as np
import oracle
import pytest
import torch
from problems import make, solve

from speed_erase.speed_ops import EraseSettings, Rows, SettingsError
from speed_erase.speed_ops.engine.closed_form import constraint_rows
from speed_erase.speed_ops.engine.rows import canonical

TOLERANCE = 1e-7
SOFT = EraseSettings(prior="soft", ipf=False, dpa=False)

SWITCHES = {
    "soft": {},
    "without constraints": {"iec": False},
    "whole empty prompt": {"invariants": "span"},
    "beyond the anchor": {"overshoot": 1.3},
    "softer": {"softness": 3.0, "lam": 0.02},
    "harder": {"softness": 0.01, "lam": 5.0},
}


def relative(ours: torch.Tensor, theirs: np.ndarray) -> float:
    return float(np.linalg.norm(ours.numpy() - theirs) / np.linalg.norm(theirs))


def dense(problem, settings: EraseSettings, key: str) -> np.ndarray:
    retain = canonical(Rows.single(problem.retain)).values
    constraints = constraint_rows(problem.invariants, settings.invariants, settings.seed)
    n = len(problem.targets)
    return oracle.soft(
        problem.weights[key].numpy(),
        problem.targets.numpy().T,
        problem.anchors.numpy().T,
        retain.numpy().T,
        constraints.numpy().T,
        settings,
        target_share=np.full(n, 1 / n),
        retain_share=np.ones(len(retain)),
    )


@pytest.mark.parametrize("retain", [40, 300], ids=["fewer names than dimensions", "more"])
@pytest.mark.parametrize("changes", SWITCHES.values(), ids=SWITCHES)
def test_it_solves_its_own_equations(changes, retain):
    problem, settings = make(96, 5, retain, invariants=6), SOFT.replace(**changes)
    erasure = solve(*problem.args(), settings)
    for key in problem.weights:
        assert relative(erasure.delta(key), dense(problem, settings, key)) < TOLERANCE


@pytest.mark.parametrize("retain", [40, 300])
def test_one_end_is_uce(retain):
    """tau = lam / N0 and lam / n: weighted least squares with sums instead of means."""
    problem, n = make(96, 5, retain, invariants=6), 5
    uce = EraseSettings(method="uce", lam=0.7, iec=False)
    mean_eigenvalue = float(problem.retain.square().sum() / retain / 96)
    soft = SOFT.replace(iec=False, lam=0.7 / n, softness=0.7 / retain / mean_eigenvalue)
    ours, theirs = (solve(*problem.args(), settings) for settings in (soft, uce))
    for key in problem.weights:
        assert relative(ours.delta(key), theirs.delta(key).numpy()) < TOLERANCE


def test_the_other_end_is_the_null_space():
    """Where names leave exact room, a prior that is next to not soft at all is the published
    projector.
    """
    problem = make(96, 5, 30, invariants=6)
    hard = EraseSettings(ipf=False, dpa=False, threshold=1e-9)
    soft = SOFT.replace(softness=1e-6, lam=1.0)
    ours, theirs = (solve(*problem.args(), settings) for settings in (soft, hard))
    for key in problem.weights:
        assert relative(ours.delta(key), theirs.delta(key).numpy()) < 1e-3


@pytest.mark.parametrize("prior", ["soft"])
@pytest.mark.parametrize("retain", [40, 300])
def test_the_empty_prompt_stays_and_the_rank_is_exact(prior, retain):
    problem = make(96, 4, retain, invariants=8)
    settings = SOFT.replace(prior=prior, invariants="span", threshold=2.0)
    erasure = solve(*problem.args(), settings)
    certificate = erasure.certificate
    assert max(certificate.sot_drift, *certificate.null_text_drift) < 1e-9
    for key in problem.weights:
        sizes = torch.linalg.svdvals(erasure.delta(key))
        assert sizes[3] > 1e-8 * sizes[0] and sizes[4] < 1e-12 * sizes[0]


def test_more_softness_means_more_room():
    problem = make(96, 4, 300, invariants=6)
    rooms = [
        solve(*problem.args(), SOFT.replace(softness=value)).certificate.layers[0].room
        for value in (0.01, 0.1, 1.0, 10.0)
    ]
    assert rooms == sorted(rooms) and rooms[0] < rooms[-1] <= 96


def test_softened_constraints_are_refused():
    with pytest.raises(SettingsError, match="Set mu to 0"):
        SOFT.replace(mu=0.5)


def test_random_draws_and_the_filter_work_with_it():
    problem = make(96, 4, 300, invariants=6)
    for changes in ({"ipf": True}, {"ipf": True, "dpa": True}, {"rpa": True, "augmentations": 2}):
        certificate = solve(*problem.args(), SOFT.replace(**changes)).certificate
        assert all(concept.solved_median < 1 for concept in certificate.concepts)
        assert certificate.sot_drift < 1e-9


@pytest.mark.parametrize("kept", [20, 30])
@pytest.mark.parametrize(
    ("method", "ipf"), [("speed", False), ("speed", True), ("uce", False), ("null_space", False)]
)
def test_more_concepts_than_dimensions_are_solved_on_the_smaller_side(method, ipf, kept):
    """The edit of 100 concepts in 48 dimensions has rank 48, and is the one of the dense equations.

    Kept names that span less than half of the space are held like constraints, more of them in the
    usual way.
    """
    problem = make(48, 100, kept, invariants=3)
    settings = EraseSettings(method=method, ipf=ipf, dpa=False, threshold=1e-6)
    erasure = solve(*problem.args(), settings)
    shares = {"target_share": np.full(100, 1 / 100), "retain_share": np.ones(kept)}
    columns = [rows.numpy().T for rows in (problem.targets, problem.anchors, problem.retain)]
    for key, weight in problem.weights.items():
        assert erasure[key].rank == 48
        if method == "uce":
            shares["target_share"] = np.ones(100)
            theirs = oracle.uce(weight.numpy(), *columns, settings, **shares)
        else:
            constraints = constraint_rows(problem.invariants, "paper", 0).numpy().T
            theirs = oracle.speed(weight.numpy(), *columns, constraints, settings, **shares)
        assert relative(erasure.delta(key), theirs) < TOLERANCE
