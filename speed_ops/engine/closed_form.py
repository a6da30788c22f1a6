"""The edit itself, in the form that costs no d x d inverse and is a LoRA by construction.

| paper | here | shape |
| --- | --- | --- |
| W | `weight` | o x d |
| C1, C* - C1 | `targets`, `change` (rows) | n x d |
| C2 | `constraints` (rows) | k x d |
| P, eq. 2, or N of a soft prior | `span.remove` | |
| W (C* - C1) | `up` | o x n |
| C1' P Q M, eqs. 11 and 12 | `down` | n x d |

Three objectives have this solution. Eq. 1 weighs preservation against erasure (UCE): `uce_rows`.
Eq. 3 edits inside the null space alone, which makes the preservation error zero: `erasing_rows`
without constraints. Eq. 10 adds that the invariants C2 must not move: `erasing_rows` with them.

`down` has no W in it: it depends on the layer only through that layer's null space.

C2 (IEC, section 4.3) holds the start-of-text token and the empty prompt. The paper's code uses 3
cluster centres instead of the empty prompt's rows; `span` takes them all, so that the unconditional
branch of guidance is exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .draws import generator, uniform
from .null_space import KeptSpan
from .settings import InvariantMode
from .soft_prior import SoftSpan

Span = KeptSpan | SoftSpan
"""P of eq. 2, or the slope that a soft prior puts in its place."""


def erasing_rows(targets: Tensor, span: Span, constraints: Tensor, lam: float, mu: float) -> Tensor:
    """`n x d`: C1' P Q M of eqs. 11 and 12, from mean-scaled target rows.

    Args:
        targets: `n x d`, C1'.
        span: What the kept rows leave to the edit: P.
        constraints: `k x d`, C2'.
        lam: Weight of the regularization |delta P|^2 of eqs. 3 and 10; 1 in the paper.
        mu: Softens the constraints, as in the released code; 0 keeps eq. 12. Not the mu of eq. 6.
    """
    if len(constraints) and mu == 0:
        # With exact constraints the feasible edits are those inside the null space of kept rows AND
        # invariants: the same minimiser as eq. 12's Q, without inverting C2' P M C2, which is
        # singular once P has absorbed a row of C2.
        assert isinstance(span, KeptSpan), "a soft prior holds them itself"
        span, constraints = span.joined(constraints), constraints[:0]
    free = span.remove(targets)  # C1' P
    factor = _cholesky(free @ targets.T, lam)  # of C1' P C1 + lam I
    down = torch.cholesky_solve(free, factor)  # C1' P M (push-through identity)
    if not len(constraints):
        return down
    free_constraints = span.remove(constraints)  # C2' P
    softened = (free_constraints - (constraints @ free.T) @ down) / lam  # C2' P M
    inner = _cholesky(softened @ constraints.T, mu)  # of C2' P M C2 + mu I
    return down - (down @ constraints.T) @ torch.cholesky_solve(softened, inner)  # times Q


@dataclass(frozen=True, eq=False)
class FreeRows:
    """The same rows where targets fill the embedding space: solved once without kept names, then
    held to each layer's.

    Delta K' = 0 is an equality constraint like that of eq. 12, so the kept span K takes the place
    of C2 there: with B = (C1 C1' + lam I)^-1, C1' B (I - K' (K B K')^-1 K B). It costs a system as
    large as the span, not as the targets.
    """

    inverse: Tensor
    """`d x d`: B."""
    rows: Tensor
    """`n x d`: C1' B."""

    @classmethod
    def of(cls, targets: Tensor, lam: float) -> FreeRows:
        """From mean-scaled target rows."""
        inverse = torch.cholesky_inverse(_cholesky(targets.T @ targets, lam))
        return cls(inverse, targets @ inverse)

    def outside(self, span: Tensor) -> Tensor:
        """`n x d`: the rows that leave every row of `span` (`q x d`, independent) where it is."""
        projected = span @ self.inverse
        return self.rows - (self.rows @ span.T) @ torch.cholesky_solve(
            projected, _cholesky(projected @ span.T, 0.0)
        )


def uce_rows(targets: Tensor, kept: Tensor, *, alpha: float, beta: float, lam: float) -> Tensor:
    """`n x d`: alpha C1' (alpha C1 C1' + beta C0 C0' + lam I)^-1, the row factor of eq. 1's
    solution (appendix B.1).

    No layer appears in it, so one serves all layers.

    Args:
        targets: `n x d`, C1'.
        kept: `N x d`, rows of C0 times the root of their weight.
        alpha: Weight of the targets.
        beta: Weight of the kept rows.
        lam: Weight of the regularization.
    """
    moment = alpha * targets.T @ targets + beta * kept.T @ kept
    return alpha * torch.cholesky_solve(targets.T, _cholesky(moment, lam)).T


def _cholesky(matrix: Tensor, ridge: float) -> Tensor:
    """Cholesky factor of a symmetric matrix plus a ridge on its diagonal."""
    matrix = (matrix + matrix.T) / 2
    matrix.diagonal().add_(ridge)
    return torch.linalg.cholesky(matrix)


NULL_TEXT_CENTRES = 3  # the released code's number of k-means centres

# Directions below this share of the largest singular value are rounding of the text encoder's
# float32 output, not content: an orthonormal basis would blow them up to full constraints.
SPAN_CUT = 1e-6


def constraint_rows(invariants: Tensor, mode: InvariantMode, seed: int) -> Tensor:
    """`k x d`: the rows of C2.

    Args:
        invariants: All rows of the empty prompt, its start token first.
        mode: `span` for every row, `paper` for the start token and cluster centers of the rest.
        seed: Seed of the clustering.
    """
    if len(invariants) and mode == "span":
        _, sizes, basis = torch.linalg.svd(invariants, full_matrices=False)
        return basis[sizes > SPAN_CUT * sizes[:1]]
    null_text = invariants[1:]
    if len(null_text) <= NULL_TEXT_CENTRES:
        return invariants
    return torch.cat([invariants[:1], _cluster_centres(null_text, NULL_TEXT_CENTRES, seed)])


def _cluster_centres(rows: Tensor, count: int, seed: int) -> Tensor:
    """`count x d`: k-means centres, started by k-means++ with a generator of its own."""
    source = generator(seed, "null-text centres")
    centres = rows[(uniform((1,), source, rows) * len(rows)).long()]
    for _ in range(count - 1):
        gap = torch.cdist(rows, centres).square().amin(dim=1)
        draw = uniform((1,), source, rows) * gap.sum()
        index = torch.searchsorted(gap.cumsum(0), draw).clamp(max=len(rows) - 1)
        centres = torch.cat([centres, rows[index]])
    for _ in range(100):
        nearest = torch.cdist(rows, centres).argmin(dim=1)
        member = torch.nn.functional.one_hot(nearest, count).to(rows)
        sizes = member.sum(dim=0)[:, None]
        moved = torch.where(sizes > 0, member.T @ rows / sizes.clamp(min=1), centres)
        if torch.equal(moved, centres):
            break
        centres = moved
    return centres
