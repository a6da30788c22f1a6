"""Grouped embedding rows: a concept is not one vector but a few, and concepts weigh the same however many they have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .errors import InputError


@dataclass(frozen=True, eq=False)
class Rows:
    """Embeddings of named concepts, one token position a row."""

    values: Tensor
    """`m x d`: one embedding a row (the paper writes them as columns)."""
    groups: tuple[int, ...]
    """`m`: index into `names` of the concept that each row belongs to."""
    names: tuple[str, ...]
    """One for each concept; empty where the caller gave none."""
    in_context: tuple[bool, ...]
    """`m`: False for the bare name's row, True for a row out of a template."""

    @classmethod
    def single(cls, values: Tensor, names: Sequence[str] | None = None) -> Rows:
        """One bare row a concept: the paper's setting."""
        count = len(values)
        if names is not None and len(names) != count:
            raise InputError(f"There are {len(names)} names for {count} embedding rows: give one name a row.")
        labels = tuple(names) if names is not None else ("",) * count
        return cls(values, tuple(range(count)), labels, (False,) * count)

    def __post_init__(self) -> None:
        if self.values.ndim != 2:
            raise InputError(f"Embeddings must be rows of a matrix, but their shape is {tuple(self.values.shape)}.")
        if not len(self.values) == len(self.groups) == len(self.in_context):
            raise InputError(f"{len(self.values)} rows have {len(self.groups)} groups: each row needs one.")
        if set(self.groups) != set(range(len(self.names))):
            raise InputError("Every concept needs at least one row, and every row a concept.")

    @property
    def width(self) -> int:
        """Width d of the embeddings."""
        return self.values.shape[1]

    def labels(self) -> list[str]:
        """Names for people; concepts without one are numbered."""
        return [name or f"#{i + 1}" for i, name in enumerate(self.names)]

    def group_index(self) -> Tensor:
        """`m`: `groups` as a tensor beside the values."""
        return torch.tensor(self.groups, dtype=torch.long, device=self.values.device)

    def weights(self) -> Tensor:
        """`m`: one over the number of rows of the row's concept, so that each concept weighs 1."""
        index = self.group_index()
        counts = per_concept(
            torch.ones(len(index), dtype=self.values.dtype, device=index.device), index, len(self.names)
        )
        return 1.0 / counts[index]

    def with_values(self, values: Tensor) -> Rows:
        """The same grouping over other values."""
        return Rows(values, self.groups, self.names, self.in_context)

    def take_rows(self, order: Tensor) -> Rows:
        """Rows in another order; the concepts stay."""
        picked = order.tolist()
        return Rows(
            self.values[order],
            tuple(self.groups[i] for i in picked),
            self.names,
            tuple(self.in_context[i] for i in picked),
        )

    def take_concepts(self, chosen: Sequence[int]) -> Rows:
        """The chosen concepts, in that order, each with all its rows."""
        members: dict[int, list[int]] = {concept: [] for concept in chosen}
        for row, concept in enumerate(self.groups):
            if concept in members:
                members[concept].append(row)
        rows = [row for concept in chosen for row in members[concept]]
        groups = tuple(new for new, concept in enumerate(chosen) for _ in members[concept])
        index = torch.tensor(rows, dtype=torch.long, device=self.values.device)
        context = tuple(self.in_context[row] for row in rows)
        return Rows(self.values[index], groups, tuple(self.names[c] for c in chosen), context)


def per_concept(amounts: Tensor, index: Tensor, concepts: int) -> Tensor:
    """Sums row amounts (`m`, or `... x m`) within each concept (`... x concepts`)."""
    shape = (*amounts.shape[:-1], concepts)
    total = torch.zeros(shape, dtype=amounts.dtype, device=amounts.device)
    return total.index_add(-1, index, amounts)


def join(parts: Sequence[Rows]) -> Rows:
    """Several sets of concepts as one."""
    groups: list[int] = []
    names: list[str] = []
    for part in parts:
        groups += [group + len(names) for group in part.groups]
        names += part.names
    context = tuple(flag for part in parts for flag in part.in_context)
    return Rows(torch.cat([part.values for part in parts]), tuple(groups), tuple(names), context)


def canonical_order(rows: Rows) -> Tensor:
    """`m`: an order that depends on names and values alone, so that shuffling a list changes no random draw.

    Rows sort by concept name, then by content. Eight leading columns tell embeddings apart; only where they do not are
    all columns compared.
    """
    values = rows.values
    leading = values[:, :8]
    columns = 8 if len(torch.unique(leading, dim=0)) == len(values) else values.shape[1]
    order = torch.arange(len(values), device=values.device)
    for column in reversed(range(min(columns, values.shape[1]))):
        order = order[torch.argsort(values[order, column], stable=True)]
    by_name = {name: rank for rank, name in enumerate(sorted(set(rows.names)))}
    ranks = torch.tensor([by_name[rows.names[g]] for g in rows.groups], dtype=torch.long, device=values.device)
    return order[torch.argsort(ranks[order], stable=True)]


def canonical(rows: Rows) -> Rows:
    """The rows in canonical order, with the concepts renumbered in the order they appear."""
    ordered = rows.take_rows(canonical_order(rows))
    seen: dict[int, int] = {}
    for group in ordered.groups:
        seen.setdefault(group, len(seen))
    names = tuple(rows.names[group] for group in seen)
    return Rows(ordered.values, tuple(seen[g] for g in ordered.groups), names, ordered.in_context)
