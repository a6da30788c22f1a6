"""Target rows paired with their anchor rows, weighted, compressed and ready for the closed form."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .errors import InputError
from .rows import Rows


@dataclass(frozen=True, eq=False)
class ErasePairs:
    """The columns of C1 and C* - C1, as rows, after compression.

    The closed form sees them only through C1 C1' and (C* - C1) C1', so any orthogonal mixing of a concept's rows, done
    to targets and anchors alike, leaves the edit as it is. That is what makes compression by SVD legitimate.
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

    def with_sets(self, sets: list[ErasePairs]) -> ErasePairs:
        """The same concepts with further sets of rows; every set weighs the same, and a concept as much as before."""
        parts = [self, *sets]
        scale = len(parts) ** -0.5
        return replace(
            self,
            targets=torch.cat([part.targets for part in parts]) * scale,
            change=torch.cat([part.change for part in parts]) * scale,
            groups=tuple(group for part in parts for group in part.groups),
        )


def pair_up(targets: Rows, anchors: Tensor, limit: int, erased: int) -> ErasePairs:
    """Pairs each target row with its anchor row and compresses every concept to at most `limit` rows.

    The first `erased` concepts are to be erased, the others are held.
    """
    change = anchors - targets.values
    index = targets.group_index()
    kept_targets, kept_change, groups, lost = [], [], [], []
    for concept in range(len(targets.names)):
        member = index == concept
        rows, moves, share = _compress(targets.values[member], change[member], limit)
        kept_targets.append(rows)
        kept_change.append(moves)
        groups += [concept] * len(rows)
        lost.append(share)
    shares = torch.stack(lost).tolist()
    return ErasePairs(
        torch.cat(kept_targets), torch.cat(kept_change), tuple(groups), len(targets.names), erased, tuple(shares)
    )


def _compress(rows: Tensor, change: Tensor, limit: int) -> tuple[Tensor, Tensor, Tensor]:
    """Mixes a concept's rows by the leading left singular vectors of their change; returns the energy share lost.

    The change, not the row, is decomposed: rows of one concept share a large common part that every prompt has and that
    the null space removes anyway, while the change holds what tells the target from its anchor.
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
    """Refuses what cannot be paired: repeated targets, one target with two anchors, rows that do not correspond."""
    if not len(targets.values):
        raise InputError("There is no concept to erase: give at least one target.")
    if targets.values.shape != anchors.values.shape or targets.groups != anchors.groups:
        raise InputError(
            f"{len(targets.values)} target rows stand against {len(anchors.values)} anchor rows: "
            "every target row needs the anchor row of the same position."
        )
    first: dict[object, int] = {}
    for concept, key in enumerate(_identities(targets)):
        other = first.setdefault(key, concept)
        if other == concept:
            continue
        name = targets.names[concept] or f"row {concept + 1}"
        mine, theirs = (_members(anchors, c) for c in (concept, other))
        if mine.shape == theirs.shape and torch.equal(mine, theirs):
            raise InputError(f"The target {name!r} is listed twice: remove one of the two.")
        raise InputError(f"The target {name!r} is listed twice with different anchors: keep one of them.")


def _members(rows: Rows, concept: int) -> Tensor:
    return rows.values[rows.group_index() == concept]


def _identities(rows: Rows) -> list[object]:
    """What makes two concepts the same target: their name where there is one, else their rows."""
    names = [" ".join(name.casefold().split()) for name in rows.names]
    return [name or tuple(map(tuple, _members(rows, concept).tolist())) for concept, name in enumerate(names)]
