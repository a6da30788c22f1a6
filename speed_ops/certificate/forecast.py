"""Before any edit: which kept names the bare erasure of eq. 5 would move, and how far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..engine.prior import PriorShift, erase_gain
from ..engine.problem import check_weights, prepare, widen
from ..engine.rows import Rows, per_concept
from ..engine.settings import EraseSettings


@dataclass(frozen=True)
class Forecast:
    """Kept names by predicted relative shift, most endangered first."""

    names: tuple[str, ...]
    shifts: tuple[float, ...]
    """Median over layers of |delta_erase c0| / |W c0|, root mean square over a name's rows."""
    order: tuple[int, ...]
    """The names' places in the caller's set."""


def forecast(
    weights: Mapping[str, Tensor],
    targets: Tensor | Rows,
    anchors: Tensor | Rows,
    retain: Tensor | Rows,
    settings: EraseSettings | None = None,
    *,
    target_names: Sequence[str] | None = None,
    retain_names: Sequence[str] | None = None,
) -> Forecast:
    """Ranks the kept names by how far erasing the targets, with nothing protected, would move
    them.
    """
    chosen = (settings or EraseSettings()).but(held_out=0.0)
    problem = prepare(targets, anchors, None, None, chosen, target_names=target_names)
    rows = retain if isinstance(retain, Rows) else Rows.single(retain, retain_names)
    rows = rows.with_values(rows.values.to(problem.targets.values))
    check_weights(weights, rows.width)
    scaled, change = problem.pairs.mean_scaled()
    gain = erase_gain(scaled)
    response, index, single = (
        gain @ rows.values.T,
        rows.group_index(),
        rows.values.to(torch.float32),
    )
    table = []
    for key in weights:
        weight = widen(weights[key], key, rows.values)
        moved = PriorShift(gain, weight @ change.T).of(response).square()
        size = (single @ weight.to(torch.float32).T).square().sum(dim=1).to(moved)
        count = len(rows.names)
        table.append(
            (
                per_concept(moved, index, count) / per_concept(size, index, count).clamp(min=1e-30)
            ).sqrt()
        )
    ranked = torch.stack(table).median(dim=0).values.sort(descending=True, stable=True)
    names, order = rows.labels(), ranked.indices.tolist()
    return Forecast(tuple(names[i] for i in order), tuple(ranked.values.tolist()), tuple(order))


def endangered(ahead: Forecast, settings: EraseSettings) -> list[int]:
    """IPF (eq. 6) on bare names: places of those that move by more than `filter_scale` times the
    mean.

    At most `context_names` of them, the worst first.
    """
    if not ahead.shifts:
        return []
    bar = settings.filter_scale * sum(ahead.shifts) / len(ahead.shifts)
    chosen = [place for place, shift in zip(ahead.order, ahead.shifts, strict=True) if shift > bar]
    return chosen[: settings.context_names]
