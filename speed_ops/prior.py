"""Prior Knowledge Refinement (section 4): which retain rows matter, and which neighbours of theirs to add.

| paper | here | shape |
| --- | --- | --- |
| C0 | `retain` (rows) | N x d |
| delta_erase, eq. 5 | `W change' gain` | o x d, never formed |
| \\|delta_erase c0\\|, eq. 6 | `PriorShift.of` | N |
| P_min = V_min V_min', eq. 7 | `directions` = V_min' | r x d |
| c0 + eps P_min, eq. 8 | `draws @ directions`, never formed | N x N_A x r |
| R_refine | `RefinedPrior` | factor F with R = F'F / count |

Each draw lies on r directions, so it is r numbers, and the correlation matrix of all draws is a rank-2r update of a
weighted sum over the kept rows: no perturbed embedding is ever made.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .draws import generator, normal
from .rows import per_concept
from .settings import FilterUnit

_COLUMNS = 4096  # retain rows handled at a time: bounds the memory of intermediates


@dataclass(frozen=True, eq=False)
class PriorShift:
    """How far the bare erasure of eq. 5 would move an embedding, in one layer."""

    gain: Tensor
    """`n x d`: (I + C1'C1)^-1 C1', the same for every layer."""
    outputs: Tensor
    """`o x n`: W (C* - C1)."""

    def of(self, response: Tensor) -> Tensor:
        """`N`: |delta_erase c| for embeddings given by their response `gain @ c` (`n x N`)."""
        squares = [self._squares(part) for part in response.split(_COLUMNS, dim=1)]
        return torch.cat(squares).clamp(min=0).sqrt()

    def _squares(self, response: Tensor) -> Tensor:
        out, rank = self.outputs.shape
        if rank <= out:
            return (response * (self.outputs.T @ self.outputs @ response)).sum(dim=0)
        return (self.outputs @ response).square().sum(dim=0)


def erase_gain(targets: Tensor) -> Tensor:
    """`n x d`: the layer-independent factor of eq. 5, (I + C1'C1)^-1 C1', from mean-scaled target rows."""
    system = targets @ targets.T
    system.diagonal().add_(1.0)
    return torch.cholesky_solve(targets, torch.linalg.cholesky(system))


def influence_filter(shift: Tensor, scale: float, groups: Tensor, concepts: int, unit: FilterUnit) -> Tensor:
    """`N` booleans: IPF (eq. 6), shift above `scale` times its mean, by row or by concept (RMS of its rows)."""
    if unit == "row" or concepts == len(shift):
        return shift > scale * shift.mean()
    rows = per_concept(torch.ones_like(shift), groups, concepts)
    by_concept = (per_concept(shift.square(), groups, concepts) / rows).sqrt()
    return (by_concept > scale * by_concept.mean())[groups]


@dataclass(frozen=True, eq=False)
class RefinedPrior:
    """R_refine as a factor: the correlation matrix is F'F / count with F = [omega c + tilt V ; tail V]."""

    kept: Tensor
    """`p`: indices of the kept retain rows."""
    omega: Tensor
    """`p`: square root of each kept row's weight, its draws included."""
    directions: Tensor
    """`r x d`: V_min', or `0 x d` without augmentation."""
    tilt: Tensor
    """`p x r`: how far the draws lean each factor row along the directions."""
    tail: Tensor
    """`r x r`: what of the draws' spread remains after the tilt."""
    count: Tensor
    """Scalar: total weight, which the correlation matrix is divided by."""
    added: Tensor
    """Scalar: number of draws that passed the filter."""

    def factor(self, retain: Tensor) -> Tensor:
        """`(p + r) x d`: F / sqrt(count)."""
        scale, rows = self.count.rsqrt(), len(self.kept)
        factor = retain.new_empty((rows + len(self.tail), retain.shape[1]))
        torch.index_select(retain, 0, self.kept, out=factor[:rows])
        factor[:rows].mul_(self.omega[:, None] * scale).addmm_(self.tilt * scale, self.directions)
        factor[rows:] = (self.tail * scale) @ self.directions
        return factor

    def gram(self, retain_gram: Tensor, along: Tensor) -> Tensor:
        """`(p + r)` square: F F' / count from C0'C0 and `along` = C0'V, without touching an embedding."""
        scale = self.count.rsqrt()
        omega, tilt, tail = self.omega * scale, self.tilt * scale, self.tail * scale
        lean = omega[:, None] * along[self.kept]
        rows, size = len(self.kept), len(self.kept) + len(tail)
        gram = omega.new_empty((size, size))
        corner = gram[:rows, :rows]
        torch.mul(retain_gram[self.kept[:, None], self.kept], omega[:, None], out=corner)
        corner.mul_(omega)
        half = lean + tilt / 2  # lean tilt' + tilt lean' + tilt tilt', both halves in one product
        corner.addmm_(torch.cat([half, tilt], dim=1), torch.cat([tilt, half], dim=1).T)
        edge = (lean + tilt) @ tail.T
        gram[:rows, rows:], gram[rows:, :rows], gram[rows:, rows:] = edge, edge.T, tail @ tail.T
        return gram


def keep_only(kept: Tensor, weights: Tensor, directions: Tensor) -> RefinedPrior:
    """The kept rows without any draws."""
    rank = len(directions)
    empty = weights.new_zeros((len(kept), rank))
    omega = weights[kept]
    return RefinedPrior(
        kept, omega.sqrt(), directions, empty, empty.new_zeros((rank, rank)), omega.sum(), empty.new_zeros(())
    )


def augment_directed(
    shift: PriorShift,
    response: Tensor,
    sizes: Tensor,
    kept: Tensor,
    weights: Tensor,
    directions: Tensor,
    draws: Tensor,
    scale: float,
) -> RefinedPrior:
    """DPA (eqs. 7-9) on the kept rows, the draws filtered by IPF with one mean over all of them.

    `response` (`n x N`) and `sizes` (`N`) are the retain rows' own, `draws` is `N x N_A x r`.
    """
    draws, own = draws[kept], weights[kept]
    lean = shift.outputs @ (shift.gain @ directions.T)  # o x r: delta_erase V
    along = (shift.outputs.T @ lean).T @ response[:, kept]  # r x p: V' delta' delta c0
    squares = (
        sizes[kept].square()[:, None]
        + 2 * torch.einsum("par,rp->pa", draws, along)
        + torch.einsum("par,rs,pas->pa", draws, lean.T @ lean, draws)
    )
    moved = squares.clamp(min=0).sqrt()
    mean = (moved.mean(dim=1) * own).sum() / own.sum()
    passed = (moved > scale * mean).to(own)
    omega = (own * (1 + passed.sum(dim=1))).sqrt()
    tilt = own[:, None] * (passed[:, :, None] * draws).sum(dim=1) / omega[:, None]
    spread = torch.einsum("p,pa,par,pas->rs", own, passed, draws, draws)
    return RefinedPrior(
        kept, omega, directions, tilt, _root(spread - tilt.T @ tilt), omega.square().sum(), passed.sum()
    )


def _root(spread: Tensor) -> Tensor:
    """`r x r`: a root L of a positive semi-definite matrix, L'L = spread."""
    values, vectors = torch.linalg.eigh(spread)
    return values.clamp(min=0).sqrt()[:, None] * vectors.T


def augment_random(
    shift: PriorShift, retain: Tensor, kept: Tensor, weights: Tensor, times: int, scale: float, seed: int, key: str
) -> tuple[Tensor, Tensor]:
    """RPA (ablation 4): draws in every direction; returns the correlation matrix (`d x d`) and the number that passed.

    Here the embeddings have to be made, a slice at a time and twice: once for the mean, once for the sum.
    """
    chosen, own = retain[kept], weights[kept]

    def slices():
        source = generator(seed, f"random augmentation of {key}")
        for rows, weight in zip(chosen.split(128), own.split(128), strict=True):
            noisy = (rows[:, None] + normal((len(rows), times, rows.shape[1]), source, rows)).flatten(0, 1)
            yield noisy, weight.repeat_interleave(times), shift.of(shift.gain @ noisy.T)

    total, draws = own.new_zeros(()), own.new_zeros(())
    for _, weight, moved in slices():
        total, draws = total + (weight * moved).sum(), draws + weight.sum()
    moment, count, added = (own[:, None] * chosen).T @ chosen, own.sum(), own.new_zeros(())
    for noisy, weight, moved in slices():
        passed = (moved > scale * total / draws).to(own) * weight
        moment, count = moment + (passed[:, None] * noisy).T @ noisy, count + passed.sum()
        added = added + (passed > 0).sum()
    return moment / count, added
