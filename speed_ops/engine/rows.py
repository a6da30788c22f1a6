"""Embedding rows: `Rows` groups them by concept, `RowSet` holds all of them for one erasure.

A concept is not one vector but a few, and all concepts weigh the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from .draws import generator, uniform


@dataclass(frozen=True, eq=False)
class Rows:
    """Embeddings of named concepts, one token position per row."""

    values: Tensor
    """`m x d`: one embedding per row (the paper writes them as columns)."""
    groups: tuple[int, ...]
    """`m`: index into `names` of the concept that each row belongs to."""
    names: tuple[str, ...]
    """One per concept; an empty string where the caller gave none."""
    in_context: tuple[bool, ...]
    """`m`: False for the bare name's row, True for a row of a prompt around the name."""

    @classmethod
    def single(cls, values: Tensor, names: Sequence[str] | None = None) -> Rows:
        """One bare row per concept: the paper's setting."""
        count = len(values)
        if names is not None and len(names) != count:
            raise InputError(
                f"There are {len(names)} names for {count} embedding rows. Give one name per row."
            )
        labels = tuple(names) if names is not None else ("",) * count
        return cls(values, tuple(range(count)), labels, (False,) * count)

    def __post_init__(self) -> None:
        if self.values.ndim != 2:
            raise InputError(
                "Embeddings must be a matrix with one row each, but their shape is"
                f" {tuple(self.values.shape)}."
            )
        if not len(self.values) == len(self.groups) == len(self.in_context):
            raise InputError(
                f"{len(self.values)} rows have {len(self.groups)} groups: each row needs one."
            )
        if set(self.groups) != set(range(len(self.names))):
            raise InputError("Every concept needs at least one row, and every row a concept.")

    @property
    def width(self) -> int:
        """Width d of the embeddings."""
        return self.values.shape[1]

    def labels(self) -> list[str]:
        """Names for people; concepts without one are numbered."""
        return [name or f"#{index + 1}" for index, name in enumerate(self.names)]

    def group_index(self) -> Tensor:
        """`m`: `groups` as a tensor on the same device as the values."""
        return torch.tensor(self.groups, dtype=torch.long, device=self.values.device)

    def weights(self) -> Tensor:
        """`m`: one over the number of rows of the row's concept, so that each concept weighs 1."""
        index = self.group_index()
        ones = torch.ones(len(index), dtype=self.values.dtype, device=index.device)
        return 1.0 / per_concept(ones, index, len(self.names))[index]

    def by_concept(self, values: Tensor) -> tuple[Tensor, ...]:
        """Splits `values` (`m x ...`, one entry per row) into one tensor per concept."""
        counts = Counter(self.groups)
        order = sorted(range(len(self.groups)), key=self.groups.__getitem__)
        sizes = [counts[concept] for concept in range(len(self.names))]
        return values[torch.tensor(order, dtype=torch.long, device=values.device)].split(sizes)

    def with_values(self, values: Tensor) -> Rows:
        """The same grouping over other values."""
        return Rows(values, self.groups, self.names, self.in_context)

    def take_rows(self, order: Tensor) -> Rows:
        """Rows in another order; the concepts stay."""
        indices = order.tolist()
        return Rows(
            self.values[order],
            tuple(self.groups[index] for index in indices),
            self.names,
            tuple(self.in_context[index] for index in indices),
        )

    def take_concepts(self, concepts: Sequence[int]) -> Rows:
        """These concepts, in this order, each with all its rows."""
        members: dict[int, list[int]] = {concept: [] for concept in concepts}
        for row, concept in enumerate(self.groups):
            if concept in members:
                members[concept].append(row)
        rows = [row for concept in concepts for row in members[concept]]
        groups = tuple(group for group, concept in enumerate(concepts) for _ in members[concept])
        index = torch.tensor(rows, dtype=torch.long, device=self.values.device)
        context = tuple(self.in_context[row] for row in rows)
        return Rows(self.values[index], groups, tuple(self.names[c] for c in concepts), context)


_SKETCHED = 4096
"""Rows that represent all rows of a layer while an edit is chosen."""


@dataclass(frozen=True, eq=False)
class RowSet:
    """All rows of one erasure, for one text input of the model."""

    targets: Rows
    """What is erased."""
    anchors: Rows
    """Row by row what `targets` become: same template, same position."""
    retain: Rows
    """Kept names that the edit is made with."""
    invariants: Tensor
    """`k x d`: all rows of the empty prompt, its start token first; `0 x d` if none were given."""
    probes: tuple[Rows, Rows] | None = None
    """Targets and anchors in contexts that the edit is not made from, for the certificate."""
    trial: tuple[Rows, Rows] | None = None
    """Same, in a third set of contexts; used only by `auto`."""
    held_out: Rows | None = None
    """Kept names that the edit is not made with, for the certificate. None: `prepare` sets some of
    `retain` aside."""
    witnesses: Rows | None = None
    """Same, for `auto` to choose by."""
    witnesses_are_held_out: bool = True
    """False where the witnesses are the kept names themselves, because there are too few."""
    hold: Rows | None = None
    """Targets of an earlier erasure that the weights already contain."""
    kinds: tuple[str, ...] = ()
    """What kind of thing each target is (style, object, ...); it decides the verdict's bars."""

    @classmethod
    def of(
        cls,
        targets: Tensor | Rows,
        anchors: Tensor | Rows,
        retain: Tensor | Rows | None = None,
        invariants: Tensor | None = None,
        *,
        target_names: Sequence[str] | None = None,
        retain_names: Sequence[str] | None = None,
    ) -> RowSet:
        """Builds a set from plain matrices; add what is optional with `dataclasses.replace`.

        Args:
            targets: `n x d`, one concept per row, or `Rows` for several rows per concept.
            anchors: What each target becomes, row by row.
            retain: `N x d`, the names that must stay.
            invariants: `k x d`, every row of the empty prompt, its start token first.
            target_names: One name per target row.
            retain_names: One name per retain row.
        """
        if isinstance(anchors, Rows) and not isinstance(targets, Rows):
            raise InputError("Replacements are grouped rows, but targets are not. Group both.")
        target_rows = as_rows(targets, target_names, "target")
        empty = target_rows.values[:0]
        return cls(
            targets=target_rows,
            anchors=as_rows(anchors, target_names, "anchor"),
            retain=as_rows(empty if retain is None else retain, retain_names, "retain"),
            invariants=empty if invariants is None else invariants,
        )

    @property
    def width(self) -> int:
        """Width d of the embeddings."""
        return self.targets.width

    @property
    def bytes_to_solve(self) -> int:
        """About how much memory an edit with these rows takes, without its layers."""
        count = 0

        def add(values: Tensor, _: str) -> Tensor:
            nonlocal count
            count += len(values)
            return values

        self.map(add)
        return 8 * (self.width * (3 * count + 8 * self.width) + _SKETCHED * (self.width + count))

    def map(self, function: Callable[[Tensor, str], Tensor]) -> RowSet:
        """The same set with every tensor passed through `function(values, field name)`."""

        def convert(value: Any, name: str) -> Any:
            if isinstance(value, Tensor):
                return function(value, name)
            if isinstance(value, Rows):
                return value.with_values(function(value.values, name))
            if isinstance(value, tuple):
                return tuple(convert(item, name) for item in value)
            return value

        values = {item.name: convert(getattr(self, item.name), item.name) for item in fields(self)}
        return replace(self, **values)

    def to(self, device: torch.device | str) -> RowSet:
        """The same rows on another device: an edit is computed where its rows are."""
        return self.map(lambda values, _: values.to(device))

    def without_kept(self) -> RowSet:
        """Without the kept rows, which are the bulk: enough to measure another strength."""
        return replace(self, retain=self.retain.take_concepts([]), held_out=None, witnesses=None)


def as_rows(values: Tensor | Rows, names: Sequence[str] | None, label: str) -> Rows:
    """Grouped rows from a plain matrix, or the rows themselves.

    Args:
        values: A matrix with one row per name, or grouped rows.
        names: One name per row of a matrix; None for unnamed rows.
        label: What messages call the rows.
    """
    if isinstance(values, Rows):
        return values
    if values.ndim != 2:
        raise InputError(
            f"The {label} embeddings must be a matrix with one row each, but their shape is"
            f" {tuple(values.shape)}."
        )
    return Rows.single(values, names)


def per_concept(amounts: Tensor, index: Tensor, concepts: int) -> Tensor:
    """Sums row amounts within each concept (`... x concepts`).

    Args:
        amounts: `m`, or `... x m`.
        index: `m`, the concept of each row.
        concepts: Number of concepts.
    """
    shape = (*amounts.shape[:-1], concepts)
    total = torch.zeros(shape, dtype=amounts.dtype, device=amounts.device)
    return total.index_add(-1, index, amounts)


def join(sets: Sequence[Rows]) -> Rows:
    """Several sets of concepts as one."""
    groups: list[int] = []
    names: list[str] = []
    for rows in sets:
        groups += [group + len(names) for group in rows.groups]
        names += rows.names
    context = tuple(flag for rows in sets for flag in rows.in_context)
    return Rows(torch.cat([rows.values for rows in sets]), tuple(groups), tuple(names), context)


def canonical_order(rows: Rows) -> Tensor:
    """`m`: an order that depends on names and values alone, so that shuffling a list changes no
    random draw.

    Rows sort by concept name, then by content: eight leading columns, then a sum in which every
    column has a weight of its own. Rows that agree in all of that are equal.
    """
    values = rows.values
    order = torch.arange(len(values), device=values.device)
    mix = uniform((1, values.shape[1]), generator(0, "canonical order"), values)
    sums = torch.cat([(chunk * mix).sum(dim=1) for chunk in values.split(4096)])
    for key in (sums, *reversed(values[:, :8].T)):
        order = order[torch.argsort(key[order], stable=True)]
    by_name = {name: rank for rank, name in enumerate(sorted(set(rows.names)))}
    ranks = [by_name[rows.names[group]] for group in rows.groups]
    rank = torch.tensor(ranks, dtype=torch.long, device=values.device)
    return order[torch.argsort(rank[order], stable=True)]


def canonical(rows: Rows) -> Rows:
    """The rows in canonical order, with the concepts renumbered in the order they appear."""
    ordered = rows.take_rows(canonical_order(rows))
    numbers: dict[int, int] = {}
    for group in ordered.groups:
        numbers.setdefault(group, len(numbers))
    names = tuple(rows.names[group] for group in numbers)
    groups = tuple(numbers[group] for group in ordered.groups)
    return Rows(ordered.values, groups, names, ordered.in_context)
