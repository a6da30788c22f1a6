"""Measures stored edits on weights that they were not solved for: a LoRA's, and those of the model
with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ..engine.edits import LayerEdit
from ..engine.layers import SolvedLayer
from ..engine.rows import RowSet, join, per_concept
from ..engine.settings import EraseSettings
from .certificate import Certificate, Drift
from .measure import MAX_WORST, certify

ABOUT = 0.5
"""A LoRA is about a name if it adds at least this share of what it adds to the concept."""


def certify_edits(
    edits: Mapping[str, LayerEdit],
    rows: RowSet,
    settings: EraseSettings,
    weights: Mapping[str, Tensor],
) -> Certificate:
    """The certificate of edits on layers with these weights.

    Args:
        edits: By layer key.
        rows: As solved.
        settings: As solved.
        weights: By layer key.
    """
    kept = torch.ones(len(rows.retain.values), dtype=torch.bool)
    layers = {
        key: SolvedLayer(
            replace(edits[key], down=edits[key].down[:, : rows.width]),
            kept,
            kept.sum() * 0,
            rows.width,
        )
        for key in weights
        if key in edits
    }
    return certify(layers, rows, settings, weights)


def effects_on_names(
    edits: Mapping[str, LayerEdit],
    rows: RowSet,
    base: Mapping[str, Tensor],
    added: Mapping[str, Tensor],
) -> tuple[Drift, ...]:
    """How far every listed name moved when a LoRA was edited, those set aside to judge by included.

    A name that the LoRA is about moved relative to what the LoRA adds to it: a weak LoRA changes
    little of the model, and can still lose all that it does for a name. Other names moved relative
    to the model with the LoRA.

    Args:
        edits: What became of the LoRA, by layer key.
        rows: As solved.
        base: Weights of the model.
        added: What the LoRA adds to them.
    """
    judges = [rows.witnesses if rows.witnesses_are_held_out else None, rows.held_out]
    listed = join([rows.retain, *(part for part in judges if part is not None)])
    names, index, values = listed.labels(), listed.group_index(), listed.values.double()
    targets = rows.targets.values.double()
    if not names:
        return ()
    layers = []
    for key in added:
        if key not in edits:
            continue
        own = added[key].double()
        change = edits[key].up @ edits[key].down[:, : rows.width]

        def squares(matrix: Tensor) -> Tensor:
            return per_concept((values @ matrix.T).square().sum(dim=1), index, len(names))

        whole = base[key].double() + own
        moved, adds, size = squares(change), squares(own), squares(whole).clamp(min=1e-30)
        usual = (targets @ own.T).norm() / (targets @ whole.T).norm()
        is_about = adds / size >= (ABOUT * usual) ** 2
        layers.append((moved / torch.where(is_about, adds, size)).sqrt())
    drift = torch.stack(layers).median(dim=0).values
    ordered, order = drift.sort(descending=True)
    worst = tuple((names[i], float(drift[i])) for i in order[:MAX_WORST].tolist())
    median, p95 = drift.quantile(torch.tensor([0.5, 0.95]).double()).tolist()
    where = "context" if any(listed.in_context) else "bare"
    maximum, mean = float(ordered[0]), float(drift.mean())
    return (Drift("kept", where, len(names), median, p95, maximum, worst, mean),)
