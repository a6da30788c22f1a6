"""Cross-validation over the given prompts, for `auto` where none were set aside for it.

Each concept's rows and each kept name's rows are cut into parts. Each fold makes the edit without
one part, and is judged on that part alone. Judged on the rows that it was made from, an edit seems
to erase twice as well as it does in other prompts, and spends more drift than it shows.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from .rows import Rows, RowSet

FOLDS = 3


def folds(rows: RowSet) -> list[RowSet]:
    """The problems to judge by, each with its `trial` and `witnesses`; none where the caller gave
    `trial` rows, or a single prompt per concept.

    Args:
        rows: Prepared rows.
    """
    parts = _parts(rows.targets)
    if rows.trial is not None or bool((parts < 0).all()):
        return []
    retain, witnesses = _parts(rows.retain), _in_prompts(rows.witnesses)
    unseen = _parts(witnesses) if witnesses else parts[:0]
    return [
        replace(
            rows,
            targets=_take(rows.targets, parts != fold),
            anchors=_take(rows.anchors, parts != fold),
            trial=(
                _take(rows.targets, (parts == fold) | (parts < 0)),
                _take(rows.anchors, (parts == fold) | (parts < 0)),
            ),
            retain=_take(rows.retain, retain != fold),
            witnesses=witnesses and _take(witnesses, (unseen == fold) | (unseen < 0)),
        )
        for fold in range(FOLDS)
    ]


def _parts(rows: Rows) -> Tensor:
    """`m`: the part of each row, neighbors together because a prompt's rows are; -1 for a concept
    with too few rows to be cut.
    """
    groups = rows.group_index()
    order = torch.argsort(groups, stable=True)
    counts = torch.bincount(groups, minlength=len(rows.names))
    rank = torch.empty_like(order)
    first = (counts.cumsum(0) - counts)[groups[order]]
    rank[order] = torch.arange(len(order), device=order.device) - first
    return torch.where(counts[groups] >= FOLDS, rank * FOLDS // counts[groups], -1)


def _in_prompts(names: Rows | None) -> Rows | None:
    """Names with only their rows in prompts, where at least half of the names have some."""
    if names is None:
        return None
    groups = [
        group for group, context in zip(names.groups, names.in_context, strict=True) if context
    ]
    if 2 * len(set(groups)) < len(names.names):
        return names
    inside = names.take_concepts(sorted(set(groups)))
    return _take(inside, torch.tensor(inside.in_context, device=inside.values.device))


def _take(rows: Rows, flags: Tensor) -> Rows:
    return rows.take_rows(flags.nonzero().squeeze(1))
