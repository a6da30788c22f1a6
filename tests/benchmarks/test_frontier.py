"""The frontier: which names are told apart, and its page next to the figures it is made from."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import torch

from speed_erase.benchmarks.frontier.cells import names_told_apart
from speed_erase.benchmarks.frontier.report import BUDGET, FIGURES, merged, page
from speed_erase.speed_ops.certificate.warnings import OVER_BUDGET
from speed_erase.speed_ops.engine.edits import LayerEdit
from speed_erase.speed_ops.engine.rows import Rows


def test_names_are_told_apart_until_one_has_become_another() -> None:
    source = torch.Generator().manual_seed(1)
    rows = Rows(
        torch.eye(8, dtype=torch.float64)[:4], (0, 1, 2, 3), ("a", "b", "c", "d"), (True,) * 4
    )
    weight = torch.randn(6, 8, generator=source, dtype=torch.float64)
    nothing = LayerEdit(
        torch.zeros(6, 1, dtype=torch.float64), torch.zeros(1, 8, dtype=torch.float64)
    )
    became = LayerEdit(
        (weight[:, 1] - weight[:, 0])[:, None], torch.eye(8, dtype=torch.float64)[:1]
    )
    assert names_told_apart({"x": weight}, {"x": nothing}, rows) == 1
    assert names_told_apart({"x": weight, "y": weight}, {"x": nothing, "y": became}, rows) == 0.75


DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_says_what_its_figures_say() -> None:
    figures = json.loads((DOCS / FIGURES).read_text(encoding="utf-8"))
    assert page(figures) == (DOCS / "frontier.md").read_text(encoding="utf-8")


def test_one_cell_measured_again_changes_that_cell_alone() -> None:
    figures = json.loads((DOCS / FIGURES).read_text(encoding="utf-8"))
    again = copy.deepcopy(figures["cells"]["mpnet, 1"]["default"]) | {"drift": 0.876}
    now = page(merged(figures, {"cells": {"mpnet, 1": {"default": again}}}))
    changed = [
        new
        for old, new in zip(page(figures).splitlines(), now.splitlines(), strict=True)
        if old != new
    ]
    assert changed and all(line.startswith("| mpnet, 1 |") for line in changed)
    assert any("87.6%" in line for line in changed)


def test_the_default_keeps_its_budget_in_every_cell() -> None:
    """As measured last, on names held out of everything; the certificate warns from 1.1 times the
    budget.
    """
    figures = json.loads((DOCS / FIGURES).read_text(encoding="utf-8"))
    drifts = {name: cell["default"]["drift"] for name, cell in figures["cells"].items()}
    assert len(drifts) == 15 and all(drift <= OVER_BUDGET * BUDGET for drift in drifts.values()), (
        drifts
    )
