"""A soft prior: the more the kept names use a direction, the less the edit may use it.

The null space of eq. 2 is a step: each direction is either free to edit or off limits. Where kept
names in prompts fill every direction, any place for that step is wrong, and a slope does better on
every text encoder we measured (docs/research/limits.md). Instead of the projector P it uses

    N = tau (R + tau I)^-1,        R = C0 C0' / N0, eigenvalues of N from 0 (used by the kept names)
    to 1 (free),

and the edit C1' N (C1 N C1' + lam I)^-1 is the minimiser of

    |delta C1 - W (C* - C1)|^2 + (lam / tau) |delta C0|^2 / N0 + lam |delta|^2.

So it is one family. A null space is N with eigenvalues 0 and 1 alone. UCE (eq. 1) is tau = lam_uce
/ N0 and lam = lam_uce / n. Rows that may not move at all (C2, and the null space's span where both
are asked for) are taken out of R and of the edit, which holds them exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .null_space import KeptSpan, lower_gram


@dataclass(frozen=True, eq=False)
class SoftSpan:
    """N, by a Cholesky factor of its inverse; used like a `KeptSpan`, which is P."""

    factor: Tensor
    """`d x d`, of R + tau I; or, where kept rows F are fewer, `p x p`, of F F' + tau I."""
    rows: Tensor | None
    """`p x d`: F, with the second kind of factor."""
    tau: Tensor
    """Scalar: how much a direction may be used and count as half free."""
    held: KeptSpan
    """What may not move at all."""
    room: int
    """Trace of N: dimensions left for erasing, part ones added up."""

    def remove(self, rows: Tensor) -> Tensor:
        """Rows times N."""
        free = self.held.remove(rows)
        if self.rows is None:
            soft = self.tau * torch.cholesky_solve(free.T, self.factor).T
        else:
            soft = free - torch.cholesky_solve(self.rows @ free.T, self.factor).T @ self.rows
        return self.held.remove(soft)


def soft_span(kept: Tensor, softness: float, held: KeptSpan) -> SoftSpan | KeptSpan:
    """N from kept rows.

    Args:
        kept: `p x d`, F with R = F'F.
        softness: tau as a share of R's mean eigenvalue.
        held: What may not move at all.
    """
    width = kept.shape[1]
    tau = softness * kept.square().sum() / width
    rows = held.remove(kept)
    if not float(tau) > 0:
        return held
    if len(rows) >= width:
        return _of_moment(lower_gram(rows.T), tau, held)
    factor, inverse = _factor(rows @ rows.T, tau)
    room = width - len(rows) + float(tau * inverse.diagonal().sum()) - len(held.basis)
    return SoftSpan(factor, rows, tau, held, round(room))


def soft_span_of_moment(moment: Tensor, softness: float, held: KeptSpan) -> SoftSpan:
    """N from the correlation matrix itself.

    Args:
        moment: `d x d`, R, whole.
        softness: tau as a share of R's mean eigenvalue.
        held: What may not move at all.
    """
    tau = softness * moment.diagonal().mean()
    return _of_moment(held.remove(held.remove(moment).T), tau, held)


def _of_moment(moment: Tensor, tau: Tensor, held: KeptSpan) -> SoftSpan:
    factor, inverse = _factor(moment, tau)
    # R is zero along what is held, where N would otherwise be 1.
    room = float(tau * inverse.diagonal().sum()) - len(held.basis)
    return SoftSpan(factor, None, tau, held, round(room))


def _factor(matrix: Tensor, ridge: Tensor) -> tuple[Tensor, Tensor]:
    """Cholesky factor of a matrix (lower triangle) plus a ridge, and the inverse of that sum."""
    matrix.diagonal().add_(ridge)
    factor = torch.linalg.cholesky(matrix)
    return factor, torch.cholesky_inverse(factor)
