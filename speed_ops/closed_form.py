"""The edit itself (eqs. 10-12), in the form that costs no d x d inverse and is a LoRA by construction.

| paper | here | shape |
| --- | --- | --- |
| W | `weight` | o x d |
| C1, C* - C1 | `targets`, `change` (rows) | n x d |
| C2 | `constraints` (rows) | k x d |
| P | `span.remove` | |
| delta P = W (C* C1' - C1 C1') P Q M, eq. 11 | `up @ down` | o x d |
| W (C* - C1) | `up` | o x n |
| C1' P Q M | `down` | n x d |

`down` has no W in it: it depends on the layer only through that layer's null space.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .nullspace import KeptSpan


def erasing_rows(targets: Tensor, span: KeptSpan, constraints: Tensor, lam: float, mu: float) -> Tensor:
    """`n x d`: C1' P Q M of eqs. 11 and 12, from mean-scaled target rows."""
    if len(constraints) and mu == 0:
        # With exact constraints the feasible edits are those inside the null space of retain set AND invariants: the
        # same minimiser as eq. 12's Q, without inverting C2' P M C2, which is singular once P has absorbed a row of C2.
        span, constraints = span.joined(constraints), constraints[:0]
    free = span.remove(targets)  # C1' P
    system = _solver(free @ targets.T, lam)  # C1' P C1 + lam I
    down = torch.cholesky_solve(free, system)  # C1' P M (push-through identity)
    if not len(constraints):
        return down
    held = span.remove(constraints)  # C2' P
    softened = (held - (constraints @ free.T) @ torch.cholesky_solve(free, system)) / lam  # C2' P M
    inner = _solver(softened @ constraints.T, mu)  # C2' P M C2 + mu I
    return down - (down @ constraints.T) @ torch.cholesky_solve(softened, inner)


def uce_rows(targets: Tensor, retain: Tensor, weights: Tensor, alpha: float, beta: float, lam: float) -> Tensor:
    """`n x d`: alpha C1' (alpha C1 C1' + beta C0 C0' + lam I)^-1, the row factor of UCE (appendix B.1).

    No layer appears in it, so one solve serves all layers.
    """
    system = alpha * targets.T @ targets + beta * (weights[:, None] * retain).T @ retain
    return alpha * torch.cholesky_solve(targets.T, _solver(system, lam)).T


def _solver(system: Tensor, ridge: float) -> Tensor:
    """Cholesky factor of a symmetric system plus a ridge on its diagonal."""
    system = (system + system.T) / 2
    system.diagonal().add_(ridge)
    return torch.linalg.cholesky(system)
