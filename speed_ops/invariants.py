"""Invariant equality constraints (IEC, section 4.3): what every prompt shares must keep its output.

C2 holds the start-of-text token and the empty prompt. The paper's code stands 3 cluster centres in for the empty
prompt's rows; `span` takes them all, so that the unconditional branch of guidance is exact.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .draws import generator, uniform
from .settings import InvariantMode

NULL_TEXT_CENTRES = 3  # the released code's number of k-means centres

# Directions below this share of the largest singular value are rounding of the text encoder's float32 output, not
# content: an orthonormal basis would blow them up to full constraints.
SPAN_CUT = 1e-6


def constraint_rows(invariants: Tensor, mode: InvariantMode, seed: int) -> Tensor:
    """`k x d`: the rows of C2 from all rows of the empty prompt (`invariants`, SOT first)."""
    if not len(invariants):
        return invariants
    if mode == "span":
        return orthonormal_rows(invariants, SPAN_CUT)
    null_text = invariants[1:]
    if len(null_text) <= NULL_TEXT_CENTRES:
        return invariants
    return torch.cat([invariants[:1], cluster_centres(null_text, NULL_TEXT_CENTRES, seed)])


def orthonormal_rows(rows: Tensor, cut: float) -> Tensor:
    """Orthonormal basis, as rows, of the span of `rows` without singular values below `cut` times the largest."""
    _, sizes, basis = torch.linalg.svd(rows, full_matrices=False)
    return basis[sizes > cut * sizes[:1]]


def cluster_centres(rows: Tensor, count: int, seed: int, steps: int = 100) -> Tensor:
    """`count x d`: k-means centres, started by k-means++ with a generator of its own."""
    source = generator(seed, "null-text centres")
    centres = rows[(uniform((1,), source, rows) * len(rows)).long()]
    for _ in range(count - 1):
        gap = torch.cdist(rows, centres).square().amin(dim=1)
        place = torch.searchsorted(gap.cumsum(0), uniform((1,), source, rows) * gap.sum()).clamp(max=len(rows) - 1)
        centres = torch.cat([centres, rows[place]])
    for _ in range(steps):
        nearest = torch.cdist(rows, centres).argmin(dim=1)
        member = torch.nn.functional.one_hot(nearest, count).to(rows)
        sizes = member.sum(dim=0)
        moved = torch.where(sizes[:, None] > 0, member.T @ rows / sizes.clamp(min=1)[:, None], centres)
        if torch.equal(moved, centres):
            break
        centres = moved
    return centres
