"""The engine equals the paper's dense equations, for every method and switch, with the same
draws.
"""

from __future__ import annotations

import numpy as np
import oracle
import pytest
import torch
from problems import make, solve

from speed_erase.speed_ops import EraseSettings, Rows
from speed_erase.speed_ops.engine.closed_form import constraint_rows
from speed_erase.speed_ops.engine.draws import generator, normal, shuffle
from speed_erase.speed_ops.engine.rows import canonical

TOLERANCE = 1e-7

SWITCHES = {
    "speed": {},
    "ablation 1": {"iec": False, "ipf": False, "dpa": False},
    "ablation 2": {"ipf": False, "dpa": False},
    "ablation 3": {"dpa": False},
    "ablation 4": {"dpa": False, "rpa": True, "threshold": 1.2},
    "no ipf": {"ipf": False},
    "no iec": {"iec": False},
    "rank 3": {"augment_rank": 3},
    "soft constraints": {"mu": 0.5},
    "span": {"invariants": "span"},
    "filter scale": {"filter_scale": 0.6},
    "null space": {"method": "null_space"},
    "beyond the anchor": {"overshoot": 1.25},
    "multi": {"threshold": 1e-4, "lam": 0.05, "ipf": False},
}


def relative(ours: torch.Tensor, theirs: np.ndarray) -> float:
    return float(np.linalg.norm(ours.numpy() - theirs) / np.linalg.norm(theirs))


def dense(problem, settings: EraseSettings, key: str) -> np.ndarray:
    """The oracle's delta, fed with the engine's random numbers in canonical order."""
    retain = canonical(Rows.single(problem.retain)).values
    count = len(retain)
    draws = normal(
        (count, settings.augmentations, settings.augment_rank),
        generator(settings.seed, f"directed augmentation of {key}"),
        retain,
    )
    noise = None
    if settings.rpa:
        noise = oracle_noise(problem, settings, key, retain)
    c2 = constraint_rows(problem.invariants, settings.invariants, settings.seed)
    weight = problem.weights[key].numpy()
    n = len(problem.targets)
    return oracle.speed(
        weight,
        problem.targets.numpy().T,
        problem.anchors.numpy().T,
        retain.numpy().T,
        c2.numpy().T,
        settings,
        target_share=np.full(n, 1 / n),
        retain_share=np.ones(count),
        draws=draws.numpy(),
        shuffle=shuffle(count, settings.seed, retain).numpy(),
        noise=noise,
    )


def oracle_noise(problem, settings, key, retain) -> np.ndarray:
    """The noise of the kept rows; the engine draws it for kept rows only, 128 rows at a time."""
    weight = problem.weights[key].numpy()
    n = len(problem.targets)
    delta = oracle.delta_erase(
        weight, problem.targets.numpy().T, problem.anchors.numpy().T, np.full(n, 1 / n)
    )
    kept = oracle.filtered(delta, retain.numpy().T, settings.filter_scale, np.ones(len(retain)))
    source = generator(settings.seed, f"random augmentation of {key}")
    noise = np.zeros((len(retain), settings.augmentations, retain.shape[1]))
    places = np.flatnonzero(kept)
    for start in range(0, len(places), 128):
        part = places[start : start + 128]
        noise[part] = normal(
            (len(part), settings.augmentations, retain.shape[1]), source, retain
        ).numpy()
    return noise


@pytest.mark.parametrize("switch", SWITCHES)
@pytest.mark.parametrize(
    ("width", "concepts", "retain"), [(8, 1, 0), (24, 2, 40), (40, 7, 12), (64, 3, 300)]
)
def test_equals_the_paper(switch, width, concepts, retain):
    settings = EraseSettings(**SWITCHES[switch])
    problem = make(
        width, concepts, retain, outs=(width // 2, 2 * width), seed=width, invariants=1 + width // 5
    )
    erasure = solve(*problem.args(), settings)
    for key in problem.weights:
        expected = dense(problem, settings, key)
        assert np.linalg.norm(expected) > 1e-6, "negative control: there is an edit to compare"
        assert relative(erasure.delta(key), expected) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "concepts", "retain"), [(768, 1, 1734), (768, 120, 3000), (768, 10, 100)]
)
def test_equals_the_paper_at_full_width(width, concepts, retain):
    settings = EraseSettings(augmentations=4)
    problem = make(width, concepts, retain, outs=(320,), seed=1, invariants=77)
    erasure = solve(*problem.args(), settings)
    assert relative(erasure.delta("layer0"), dense(problem, settings, "layer0")) < TOLERANCE


@pytest.mark.parametrize("retain", [0, 40])
@pytest.mark.parametrize(("alpha", "beta", "lam"), [(1.0, 1.0, 0.5), (3.0, 0.1, 10.0)])
def test_uce_equals_its_formula(retain, alpha, beta, lam):
    settings = EraseSettings(method="uce", erase_weight=alpha, preserve_weight=beta, lam=lam)
    problem = make(24, 3, retain)
    erasure = solve(*problem.args(), settings)
    for key, weight in problem.weights.items():
        expected = oracle.uce(
            weight.numpy(),
            problem.targets.numpy().T,
            problem.anchors.numpy().T,
            problem.retain.numpy().T,
            settings,
            target_share=np.ones(3),
            retain_share=np.ones(retain),
        )
        assert relative(erasure.delta(key), expected) < TOLERANCE


@pytest.mark.parametrize("method", ["rece", "speed"])
def test_a_round_equals_its_formula(method, monkeypatch):
    """One adversarial round: find c~ with the dense formula, add it, edit again from the original
    weights.
    """
    # here every round is kept
    monkeypatch.setattr("speed_erase.speed_ops.engine.solver.MIN_ROUND_GAIN", -1.0)
    base = "uce" if method == "rece" else "null_space"
    settings = EraseSettings(method=base, lam=0.5, threshold=0.05)
    problem = make(24, 3, 10)
    first = solve(*problem.args(), settings)
    edited = [(problem.weights[key] + first.delta(key)).numpy() for key in problem.weights]
    originals = [weight.numpy() for weight in problem.weights.values()]
    found = oracle.adversarial(
        originals, edited, problem.targets.numpy().T, settings.adversarial_reg
    )
    targets = torch.cat([problem.targets, torch.from_numpy(found.T)])
    anchors = torch.cat([problem.anchors, problem.anchors])
    rounds = {"method": "rece"} if method == "rece" else {"adversarial_rounds": 1}
    ours = solve(*problem.args(), settings.replace(**rounds))
    groups = Rows(targets, (0, 1, 2, 0, 1, 2), ("a", "b", "c"), (False,) * 6)
    theirs = solve(
        problem.weights,
        groups,
        groups.with_values(anchors),
        problem.retain,
        problem.invariants,
        settings,
    )
    for key in problem.weights:
        assert relative(ours.delta(key), theirs.delta(key).numpy()) < TOLERANCE
        assert relative(ours.delta(key), first.delta(key).numpy()) > 1e-3, (
            "negative control: the round did something"
        )


def test_grouped_rows_weigh_concepts_equally():
    """Several rows per concept: shares 1/(concepts x rows), for targets and for retain names
    alike.
    """
    settings = EraseSettings(ipf=False, dpa=False)
    problem = make(24, 6, 40)
    groups, kept = (0, 0, 0, 1, 2, 2), (*(i // 3 for i in range(39)), 13)
    targets = Rows(problem.targets, groups, ("a", "b", "c"), (True,) * 6)
    retain = Rows(problem.retain, kept, tuple(f"n{i}" for i in range(14)), (True,) * 40)
    erasure = solve(
        problem.weights,
        targets,
        targets.with_values(problem.anchors),
        retain,
        problem.invariants,
        settings,
    )
    c2 = constraint_rows(problem.invariants, "paper", 0).numpy().T
    for key, weight in problem.weights.items():
        expected = oracle.speed(
            weight.numpy(),
            problem.targets.numpy().T,
            problem.anchors.numpy().T,
            problem.retain.numpy().T,
            c2,
            settings,
            target_share=np.array([1 / 9, 1 / 9, 1 / 9, 1 / 3, 1 / 6, 1 / 6]),
            retain_share=np.array([1 / 3] * 39 + [1.0]),
        )
        assert relative(erasure.delta(key), expected) < TOLERANCE
