"""The paper's presets give the edits of the released code, fed with the same random numbers.

The fingerprints were recorded by running the released `edit_model` in float64 on these problems,
with its draws, shuffle and cluster centers replaced by the engine's.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from released_cases import CASES, Problem, fingerprint

from speed_erase.speed_ops import EraseSettings, solve
from speed_erase.speed_ops.job import host_settings

RECORDED = json.loads(Path(__file__).with_name("released_edits.json").read_text(encoding="utf-8"))
TOLERANCE = 1e-8


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_paper_preset_gives_the_released_edit(case):
    problem = Problem(case)
    erasure = solve(problem.weights, problem.rows, host_settings(case.preset))
    for key in problem.weights:
        recorded = torch.tensor(RECORDED[case.name][key], dtype=torch.float64)
        ours = torch.tensor(fingerprint(erasure.delta(key)), dtype=torch.float64)
        assert (ours - recorded).abs().max() < TOLERANCE * recorded[0]


def test_filtering_by_one_mean_would_be_another_edit(monkeypatch):
    """Negative control: the batches matter for a list longer than one batch."""
    case = CASES[0]
    assert case.retain > 128
    monkeypatch.setattr("speed_erase.speed_ops.engine.prior.FILTER_BATCH", 10**6)
    problem = Problem(case)
    erasure = solve(problem.weights, problem.rows, host_settings(case.preset))
    key = next(iter(problem.weights))
    recorded = torch.tensor(RECORDED[case.name][key], dtype=torch.float64)
    ours = torch.tensor(fingerprint(erasure.delta(key)), dtype=torch.float64)
    assert (ours - recorded).abs().max() > 1e-3 * recorded[0]


@pytest.mark.parametrize("preset", ["few", "multi", "implicit"])
def test_a_paper_preset_protects_every_listed_name(preset):
    assert host_settings(preset) == EraseSettings.preset(preset)
    assert host_settings("auto").held_out > 0, "negative control"
