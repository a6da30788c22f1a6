"""The preset `auto`: what it settles, why, and that the report says it."""

from __future__ import annotations

import torch
from problems import make

from speed_erase.speed_ops import EraseSettings, Rows, solve
from speed_erase.speed_ops.auto import RANK_BUDGET, REACHED_BELOW, THRESHOLDS


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
        if chosen != THRESHOLDS[-1]:
            assert worst[chosen] < 2 * REACHED_BELOW
        stricter = [t for t in THRESHOLDS if t < chosen]
        assert all(worst[t] > REACHED_BELOW / 2 for t in stricter)


def test_a_fuller_retain_set_gets_a_looser_threshold():
    auto = EraseSettings.preset("auto")
    few, many = (run(make(96, 4, retain, invariants=3), 2, auto).settings.threshold for retain in (10, 500))
    assert few < many


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
