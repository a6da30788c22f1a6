"""Limits: which names are still distinct, and the page next to the data it is made from."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import torch

from speed_erase.benchmarks.frontier.cells import names_told_apart
from speed_erase.benchmarks.frontier.report import BUDGET, DATA, merged, page, table_csv
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


RESEARCH = Path(__file__).parents[2] / "docs/research"
OVER = 1.1
"""How far the mean of few tuning names may miss the limit."""


def stored() -> dict:
    return json.loads((RESEARCH / DATA).read_text(encoding="utf-8"))


def test_the_page_is_made_from_its_data() -> None:
    assert page(stored()) == (RESEARCH / "limits.md").read_text(encoding="utf-8")


def test_the_table_of_all_methods_is_made_from_the_data() -> None:
    cells = {name: cell for name, cell in stored()["cells"].items() if len(cell) > 1}
    table = (RESEARCH / DATA).with_suffix(".csv").read_text(encoding="utf-8")
    assert table == table_csv(cells) and table.count("\n") == 157


def test_one_cell_measured_again_changes_that_cell_alone() -> None:
    figures = stored()
    again = copy.deepcopy(figures["cells"]["mpnet, 10"]["default"]) | {"drift": 0.876}
    now = page(merged(figures, {"cells": {"mpnet, 10": {"default": again}}}))
    lines = zip(page(figures).splitlines(), now.splitlines(), strict=True)
    changed = [new for old, new in lines if old != new and new.startswith("|")]
    assert len(changed) == 1 and changed[0].startswith("| mpnet, 10 |") and "0.88" in changed[0]


def test_the_default_keeps_its_limit_in_every_cell() -> None:
    """As measured last, on names held out of everything."""
    drifts = {name: cell["default"]["drift"] for name, cell in stored()["cells"].items()}
    assert len(drifts) == 15 and all(drift <= OVER * BUDGET for drift in drifts.values()), drifts
