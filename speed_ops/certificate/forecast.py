"""The forecast: which kept names an erasure endangers, before any of them is protected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..engine.pairs import pair_up
from ..engine.prepare import check_weights, checked, widen
from ..engine.prior import PriorShift, erase_gain
from ..engine.rows import RowSet, per_concept
from ..engine.settings import EraseSettings


@dataclass(frozen=True)
class Forecast:
    """Kept names by predicted relative shift, most endangered first."""

    names: tuple[str, ...]
    shifts: tuple[float, ...]
    """Median over layers of |delta_erase c0| / |W c0|, root mean square over a name's rows."""
    order: tuple[int, ...]
    """Index of each name in the caller's set."""


def forecast(
    weights: Mapping[str, Tensor], rows: RowSet, settings: EraseSettings | None = None
) -> Forecast:
    """Ranks the kept names by how far erasing the targets, with nothing protected, would move them.

    Args:
        weights: {layer key: `o x d`}, read one at a time.
        rows: Targets, anchors and, as `retain`, the names to rank.
        settings: What to erase with.
    """
    rows = checked(rows)
    retain = rows.retain
    check_weights(weights, rows.width)
    targets, change = pair_up(rows, settings or EraseSettings()).mean_scaled()
    gain = erase_gain(targets)
    response, index, single = (
        gain @ retain.values.T,
        retain.group_index(),
        retain.values.to(torch.float32),
    )
    count, shifts = len(retain.names), []
    for key in weights:
        weight = widen(weights[key], key, retain.values)
        moved = PriorShift(gain, weight @ change.T).of(response).square()
        size = (single @ weight.to(torch.float32).T).square().sum(dim=1).to(moved)
        total = per_concept(size, index, count).clamp(min=1e-30)
        shifts.append((per_concept(moved, index, count) / total).sqrt())
    ranked = torch.stack(shifts).median(dim=0).values.sort(descending=True, stable=True)
    names, order = retain.labels(), ranked.indices.tolist()
    return Forecast(
        tuple(names[index] for index in order), tuple(ranked.values.tolist()), tuple(order)
    )
