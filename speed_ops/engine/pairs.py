"""Targets and anchors as the closed form reads them: paired, weighted and compressed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..errors import InputError
from .closed_form import constraint_rows
from .rows import Rows, RowSet, canonical_order
from .settings import EraseSettings


@dataclass(frozen=True, eq=False)
class ErasePairs:
    """The columns of C1, C* - C1 and C2, as rows.

    The closed form sees the first two only through C1 C1' and (C* - C1) C1', so any orthogonal
    mixing of a concept's rows, done to targets and anchors alike, leaves the edit as it is. That is
    what makes compression by SVD legitimate.
    """

    targets: Tensor
    """`n x d`: rows c1; a concept's rows carry weights that sum to 1 over the concept."""
    change: Tensor
    """`n x d`: rows c* - c1, weighted like `targets`."""
    constraints: Tensor
    """`k x d`: the rows of C2, which may not move."""
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
        """Indices of the rows that belong to concepts to erase."""
        return [row for row, group in enumerate(self.groups) if group < self.erased]

    def without_held(self) -> ErasePairs:
        """Only the rows of the concepts to erase."""
        rows = self.erased_rows()
        groups = tuple(self.groups[row] for row in rows)
        return replace(self, targets=self.targets[rows], change=self.change[rows], groups=groups)

    def reduced_to_width(self) -> ErasePairs:
        """The same edit from d rows where there are more: the concepts are mixed."""
        mix, rows = torch.linalg.qr(self.targets)  # n x d with orthonormal columns, d x d
        groups = (0,) * len(rows)
        change = mix.T @ self.change
        return replace(self, targets=rows, change=change, groups=groups, erased=max(1, self.erased))

    def with_sets(self, sets: list[ErasePairs]) -> ErasePairs:
        """The same concepts with more rows; sets weigh the same, a concept as much as before."""
        everything = [self, *sets]
        scale = len(everything) ** -0.5
        return replace(
            self,
            targets=torch.cat([pairs.targets for pairs in everything]) * scale,
            change=torch.cat([pairs.change for pairs in everything]) * scale,
            groups=tuple(group for pairs in everything for group in pairs.groups),
        )


def pair_up(rows: RowSet, settings: EraseSettings) -> ErasePairs:
    """Pairs each target row with its anchor row and compresses every concept.

    Earlier targets (`rows.hold`) join as pairs whose change is zero: that holds their outputs where
    an earlier edit put them.
    """
    order = canonical_order(rows.targets)
    targets, anchors = rows.targets.take_rows(order), rows.anchors.values[order]
    members = list(targets.by_concept(targets.values))
    changes = list(targets.by_concept(anchors - targets.values))
    if rows.hold is not None:
        held = rows.hold.by_concept(rows.hold.values)
        members += held
        changes += [torch.zeros_like(values) for values in held]
    moving = torch.stack([(change != 0).any() for change in changes]).tolist()
    compressed = [
        _compress(values, change, settings.rows_per_concept, moves)
        for values, change, moves in zip(members, changes, moving, strict=True)
    ]
    groups = [
        concept for concept, (values, _, _) in enumerate(compressed) for _ in range(len(values))
    ]
    return ErasePairs(
        targets=torch.cat([values for values, _, _ in compressed]),
        change=torch.cat([change for _, change, _ in compressed]),
        constraints=constraint_rows(rows.invariants, settings.invariants, settings.seed),
        groups=tuple(groups),
        concepts=len(members),
        erased=len(targets.names),
        energy_lost=tuple(torch.stack([lost for _, _, lost in compressed]).tolist()),
    )


def _compress(
    rows: Tensor, change: Tensor, limit: int, moves: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Mixes a concept's rows by the leading left singular vectors of their change; returns the
    energy share lost. `moves`: whether there is any change.

    The change, not the row, is decomposed: rows of one concept share a large common part that every
    prompt has and that the null space removes anyway, while the change holds what separates the
    target from its anchor.
    """
    weight = len(rows) ** -0.5
    if len(rows) <= limit:
        return rows * weight, change * weight, change.new_zeros(())
    moved = change if moves else rows
    left, sizes, _ = torch.linalg.svd(moved, full_matrices=False)
    mix = left[:, :limit].T * weight
    energy = sizes.square()
    return mix @ rows, mix @ change, energy[limit:].sum() / energy.sum()


def check_pairs(targets: Rows, anchors: Rows) -> None:
    """Refuses repeated targets, one target with two anchors, and rows that do not correspond."""
    if not len(targets.values):
        raise InputError("There is nothing to erase. Give at least one target.")
    if targets.values.shape != anchors.values.shape or targets.groups != anchors.groups:
        raise InputError(
            f"There are {len(targets.values)} target rows but {len(anchors.values)} replacement"
            " rows. "
            "Give one replacement row per target row, at the same position."
        )
    first: dict[object, int] = {}
    anchor_rows = anchors.by_concept(anchors.values)
    for concept, identity in enumerate(_identities(targets)):
        earlier = first.setdefault(identity, concept)
        if earlier == concept:
            continue
        name = targets.names[concept] or f"row {concept + 1}"
        if torch.equal(anchor_rows[concept], anchor_rows[earlier]):
            raise InputError(f"The target {name!r} is listed twice. Remove one of the two.")
        raise InputError(
            f"The target {name!r} is listed twice with different replacements. Keep one."
        )


def _identities(rows: Rows) -> list[object]:
    """What makes two concepts the same target: their name where there is one, else their rows."""
    names = [" ".join(name.casefold().split()) for name in rows.names]
    if all(names):
        return list(names)
    values = rows.by_concept(rows.values)
    return [
        name or tuple(map(tuple, values[concept].tolist())) for concept, name in enumerate(names)
    ]
