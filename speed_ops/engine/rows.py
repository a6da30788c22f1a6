"""Embedding rows in groups: a concept is not one vector but a few, and all concepts weigh the same.

First `Rows`, then the pairs of targets and anchors that the closed form takes: weighted and
compressed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..errors import InputError
from .draws import generator, uniform


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
            raise InputError(
                f"There are {len(names)} names for {count} embedding rows: give one name per row."
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
        return [name or f"#{i + 1}" for i, name in enumerate(self.names)]

    def group_index(self) -> Tensor:
        """`m`: `groups` as a tensor beside the values."""
        return torch.tensor(self.groups, dtype=torch.long, device=self.values.device)

    def weights(self) -> Tensor:
        """`m`: one over the number of rows of the row's concept, so that each concept weighs 1."""
        index = self.group_index()
        counts = per_concept(
            torch.ones(len(index), dtype=self.values.dtype, device=index.device),
            index,
            len(self.names),
        )
        return 1.0 / counts[index]

    def by_concept(self, values: Tensor) -> tuple[Tensor, ...]:
        """`values` (`m x ...`, a row of it for each row here) apart for each concept."""
        counts = Counter(self.groups)
        order = sorted(range(len(self.groups)), key=self.groups.__getitem__)
        sizes = [counts[concept] for concept in range(len(self.names))]
        return values[torch.tensor(order, dtype=torch.long, device=values.device)].split(sizes)

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
    """`m`: an order that depends on names and values alone, so that shuffling a list changes no
    random draw.

    Rows sort by concept name, then by content: eight leading columns, then a sum in which every
    column has a weight of its own. Rows that are alike in all of that are alike.
    """
    values = rows.values
    order = torch.arange(len(values), device=values.device)
    mix = uniform((1, values.shape[1]), generator(0, "canonical order"), values)
    for key in (
        torch.cat([(part * mix).sum(dim=1) for part in values.split(4096)]),
        *reversed(values[:, :8].T),
    ):
        order = order[torch.argsort(key[order], stable=True)]
    by_name = {name: rank for rank, name in enumerate(sorted(set(rows.names)))}
    ranks = torch.tensor(
        [by_name[rows.names[g]] for g in rows.groups], dtype=torch.long, device=values.device
    )
    return order[torch.argsort(ranks[order], stable=True)]


def canonical(rows: Rows) -> Rows:
    """The rows in canonical order, with the concepts renumbered in the order they appear."""
    ordered = rows.take_rows(canonical_order(rows))
    seen: dict[int, int] = {}
    for group in ordered.groups:
        seen.setdefault(group, len(seen))
    names = tuple(rows.names[group] for group in seen)
    return Rows(ordered.values, tuple(seen[g] for g in ordered.groups), names, ordered.in_context)


@dataclass(frozen=True, eq=False)
class ErasePairs:
    """The columns of C1 and C* - C1, as rows, after compression.

    The closed form sees them only through C1 C1' and (C* - C1) C1', so any orthogonal mixing of a
    concept's rows, done to targets and anchors alike, leaves the edit as it is. That is what makes
    compression by SVD legitimate.
    """

    targets: Tensor
    """`n x d`: rows c1; a concept's rows carry weights that sum to 1 over the concept."""
    change: Tensor
    """`n x d`: rows c* - c1, weighted like `targets`."""
    groups: tuple[int, ...]
    """`n`: concept of each row."""
    concepts: int
    """Number of concepts, held ones included: what the mean of the released code divides by."""
    erased: int
    """Number of concepts to erase; those after them are merely held, and their change is zero."""
    energy_lost: tuple[float, ...]
    """For each concept, the share of |c* - c1|^2 that compression gave up."""

    def mean_scaled(self) -> tuple[Tensor, Tensor]:
        """Rows scaled so that sums over them are MEANS over concepts, as in the released code."""
        scale = self.concepts**-0.5
        return self.targets * scale, self.change * scale

    def erased_rows(self) -> list[int]:
        """Places of the rows that belong to concepts to erase."""
        return [row for row, group in enumerate(self.groups) if group < self.erased]

    def without_held(self) -> ErasePairs:
        """Only the rows of the concepts to erase."""
        rows = self.erased_rows()
        groups = tuple(self.groups[row] for row in rows)
        return replace(self, targets=self.targets[rows], change=self.change[rows], groups=groups)

    def on_the_smaller_side(self) -> ErasePairs:
        """The same edit from as many rows as the embedding is wide, where there are more: the
        concepts are mixed.
        """
        mix, rows = torch.linalg.qr(self.targets)  # n x d with orthonormal columns, d x d
        groups = (0,) * len(rows)
        return replace(
            self,
            targets=rows,
            change=mix.T @ self.change,
            groups=groups,
            erased=max(1, self.erased),
        )

    def with_sets(self, sets: list[ErasePairs]) -> ErasePairs:
        """The same concepts with further sets of rows; every set weighs the same, and a concept as
        much as before.
        """
        parts = [self, *sets]
        scale = len(parts) ** -0.5
        return replace(
            self,
            targets=torch.cat([part.targets for part in parts]) * scale,
            change=torch.cat([part.change for part in parts]) * scale,
            groups=tuple(group for part in parts for group in part.groups),
        )


def pair_up(targets: Rows, anchors: Tensor, limit: int, erased: int) -> ErasePairs:
    """Pairs each target row with its anchor row and compresses every concept to at most `limit`
    rows.

    The first `erased` concepts are to be erased, the others are held.
    """
    change = targets.by_concept(anchors - targets.values)
    kept_targets, kept_change, groups, lost = [], [], [], []
    for concept, own in enumerate(targets.by_concept(targets.values)):
        rows, moves, share = _compress(own, change[concept], limit)
        kept_targets.append(rows)
        kept_change.append(moves)
        groups += [concept] * len(rows)
        lost.append(share)
    shares = torch.stack(lost).tolist()
    return ErasePairs(
        torch.cat(kept_targets),
        torch.cat(kept_change),
        tuple(groups),
        len(targets.names),
        erased,
        tuple(shares),
    )


def _compress(rows: Tensor, change: Tensor, limit: int) -> tuple[Tensor, Tensor, Tensor]:
    """Mixes a concept's rows by the leading left singular vectors of their change; returns the
    energy share lost.

    The change, not the row, is decomposed: rows of one concept share a large common part that every
    prompt has and that the null space removes anyway, while the change holds what tells the target
    from its anchor.
    """
    weight = len(rows) ** -0.5
    if len(rows) <= limit:
        return rows * weight, change * weight, change.new_zeros(())
    moved = change if bool((change != 0).any()) else rows
    left, sizes, _ = torch.linalg.svd(moved, full_matrices=False)
    mix = left[:, :limit].T * weight
    energy = sizes.square()
    return mix @ rows, mix @ change, energy[limit:].sum() / energy.sum()


def check_pairs(targets: Rows, anchors: Rows) -> None:
    """Refuses what cannot be paired: repeated targets, one target with two anchors, rows that do
    not correspond.
    """
    if not len(targets.values):
        raise InputError("There is nothing to erase: give at least one target.")
    if targets.values.shape != anchors.values.shape or targets.groups != anchors.groups:
        raise InputError(
            f"There are {len(targets.values)} target rows but {len(anchors.values)} anchor rows: "
            "every target row needs an anchor row at the same position."
        )
    first: dict[object, int] = {}
    own_anchors = anchors.by_concept(anchors.values)
    for concept, key in enumerate(_identities(targets)):
        other = first.setdefault(key, concept)
        if other == concept:
            continue
        name = targets.names[concept] or f"row {concept + 1}"
        mine, theirs = own_anchors[concept], own_anchors[other]
        if mine.shape == theirs.shape and torch.equal(mine, theirs):
            raise InputError(f"The target {name!r} is listed twice: remove one of the two.")
        raise InputError(
            f"The target {name!r} is listed twice with different anchors: keep one of them."
        )


def _identities(rows: Rows) -> list[object]:
    """What makes two concepts the same target: their name where there is one, else their rows."""
    names = [" ".join(name.casefold().split()) for name in rows.names]
    if all(names):
        return list(names)
    members: list[list[object]] = [[] for _ in names]
    for concept, row in zip(rows.groups, rows.values.tolist(), strict=True):
        members[concept].append(tuple(row))
    return [name or tuple(members[concept]) for concept, name in enumerate(names)]
