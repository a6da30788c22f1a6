"""Which rows a certificate measures in every layer: all of a small problem, a fair sample of a
large one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..engine.draws import generator, permutation
from ..engine.rows import Rows

MEASURED_ROWS = 160
"""Rows of kept names, and of targets in each kind of prompt, that are measured in every layer. More
would tell the same and cost more than the edit: where there are more, names are drawn by the seed,
and each concept gives rows from first to last."""
FEWEST_ROWS = 4
"""Rows measured of each concept, however many there are."""
ROWS_OF_A_NAME = 8
"""Rows measured of a name in prompts, from its first to its last. Every held-out name is
measured.
"""


def some_rows(targets: Rows, anchors: Rows) -> tuple[Rows, Rows]:
    """Pairs to measure: all of them, or as many of each concept as there is room for, from its
    first to its last.
    """
    count = len(targets.values)
    if count <= MEASURED_ROWS:
        return targets, anchors
    share = max(FEWEST_ROWS, MEASURED_ROWS // len(targets.names))
    members: list[list[int]] = [[] for _ in targets.names]
    for row, group in enumerate(targets.groups):
        members[group].append(row)
    picked = [row for own in members for row in _spread(own, share)]
    order = torch.tensor(sorted(picked), device=targets.values.device)
    return targets.take_rows(order), anchors.take_rows(order)


def some_names(names: Rows, seed: int) -> tuple[Rows, Tensor]:
    """Kept names to measure, half of their rows from names in prompts, and the places of their rows
    among all.
    """
    rows, places = thinned(names)
    if len(rows.values) <= MEASURED_ROWS:
        return rows, places
    counts = [0] * len(names.names)
    inside = set()
    for group, flag in zip(rows.groups, rows.in_context, strict=True):
        counts[group] += 1
        inside |= {group} if flag else set()
    order = permutation(len(counts), generator(seed, "names to measure"))
    chosen: set[int] = set()
    taken = 0
    for part, room in (
        (inside, MEASURED_ROWS / (1 if len(inside) == len(counts) else 2)),
        (None, MEASURED_ROWS),
    ):
        for name in order:
            if taken < room and name not in chosen and (part is None or name in part):
                chosen.add(name)
                taken += counts[name]
    own = torch.tensor([group in chosen for group in rows.groups], device=places.device)
    return rows.take_concepts(sorted(chosen)), places[own]


def thinned(names: Rows) -> tuple[Rows, Tensor]:
    """The names with no more rows in prompts than are measured of each, name by name, and those
    rows' places.
    """
    members: list[tuple[list[int], list[int]]] = [([], []) for _ in names.names]
    for row, (group, flag) in enumerate(zip(names.groups, names.in_context, strict=True)):
        members[group][flag].append(row)
    picked = [row for bare, inside in members for row in (*bare, *_spread(inside, ROWS_OF_A_NAME))]
    places = torch.tensor(picked, dtype=torch.long, device=names.values.device)
    return names.take_rows(places), places


def _spread(rows: Sequence[int], count: int) -> list[int]:
    """Some of the rows, from the first to the last."""
    count = min(count, len(rows))
    return [rows[place * len(rows) // count] for place in range(count)]
