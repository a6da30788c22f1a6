"""The preset `auto`: what it settles, why, and that the report says it."""

from __future__ import annotations

import pytest
import torch
from problems import make

from speed_erase.speed_ops import EraseSettings, InputError, Rows, solve
from speed_erase.speed_ops.engine.auto import NEARLY_AS_GOOD, RANK_BUDGET, REACHED_BELOW, THRESHOLDS


def grouped(values: torch.Tensor, rows: int) -> Rows:
    groups = tuple(i // rows for i in range(len(values)))
    names = tuple(f"concept {i}" for i in range(len(values) // rows))
    return Rows(values, groups, names, (True,) * len(values))


def run(problem, rows: int, settings: EraseSettings):
    targets, anchors = grouped(problem.targets, rows), grouped(problem.anchors, rows)
    return solve(problem.weights, targets, anchors, problem.retain, problem.invariants, settings)


def test_it_takes_the_strictest_threshold_that_reaches_the_anchors():
    auto = EraseSettings.preset("auto")
    for retain in (20, 400):
        problem = make(96, 4, retain, invariants=3)
        erasure = run(problem, 2, auto)
        chosen = erasure.settings.threshold
        assert chosen in THRESHOLDS
        fixed = {t: run(problem, 2, auto.but(preset_name="context", threshold=t)).certificate for t in THRESHOLDS}
        worst = {t: max(c.solved_worst for c in certificate.concepts) for t, certificate in fixed.items()}
        # The choice is made in the embedding space, before any layer: the layers agree with it within a factor.
        enough = max(REACHED_BELOW, NEARLY_AS_GOOD * worst[THRESHOLDS[-1]])
        assert worst[chosen] < 1.5 * enough
        assert all(worst[t] > enough / 1.5 for t in THRESHOLDS if t < chosen)


def test_a_fuller_retain_set_gets_a_looser_threshold():
    auto = EraseSettings.preset("auto")
    few, many = (run(make(96, 4, retain, invariants=3), 2, auto).settings.threshold for retain in (10, 500))
    assert few < many


def test_a_retain_set_that_crowds_every_direction_still_leaves_an_edit():
    """Flat embeddings have no null space to speak of: a fixed threshold refuses, auto erases and says what it costs."""
    problem = make(32, 2, 400, invariants=2)
    flat = torch.randn(400, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    args = (problem.weights, problem.targets, problem.anchors, flat, problem.invariants)
    with pytest.raises(InputError, match="fill the embedding space"):
        solve(*args, EraseSettings.preset("context"))
    certificate = solve(*args, EraseSettings.preset("auto")).certificate
    assert all(concept.solved_median < 0.35 for concept in certificate.concepts)
    assert max(part.maximum for part in certificate.drift) > 0.1


def test_many_concepts_share_the_rank():
    problem = make(64, 240, 30, invariants=3)
    chosen = run(problem, 2, EraseSettings.preset("auto", rows_per_concept=8)).settings
    assert chosen.rows_per_concept == max(2, RANK_BUDGET // 120)
    assert run(make(64, 4, 30, invariants=3), 2, EraseSettings.preset("auto")).settings.rows_per_concept == 8


def test_what_it_chose_is_in_the_report():
    erasure = run(make(96, 4, 60, invariants=3), 2, EraseSettings.preset("auto"))
    assert erasure.certificate.settings["threshold"] == erasure.settings.threshold
    assert f"threshold {erasure.settings.threshold:g}" in erasure.certificate.text()


def test_other_presets_are_left_as_they_are():
    problem = make(96, 4, 60, invariants=3)
    for name in ("context", "few", "multi"):
        settings = EraseSettings.preset(name)
        assert run(problem, 2, settings).settings == settings
