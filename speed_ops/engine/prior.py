"""Prior Knowledge Refinement (section 4): which retain rows matter, and which neighbors to add.

| paper | here | shape |
| --- | --- | --- |
| C0 | `retain` (rows) | N x d |
| delta_erase, eq. 5 | `W change' gain` | o x d, never formed |
| \\|delta_erase c0\\|, eq. 6 | `PriorShift.of` | N |
| P_min = V_min V_min', eq. 7 | `directions` = V_min' | r x d |
| c0 + eps P_min, eq. 8 | `draws @ directions`, never formed | N x N_A x r |
| R_refine | `RefinedPrior` | factor F with R = F'F / count |

Each draw lies on r directions, so it is r numbers, and the correlation matrix of all draws is a
rank-2r update of a weighted sum over the kept rows: no perturbed embedding is ever made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .draws import normal
from .null_space import lower_gram, quadratic_form
from .rows import per_concept

_COLUMNS = 4096  # retain rows handled at a time: bounds the memory of intermediates
FILTER_BATCH = 128
"""Kept rows whose draws share one mean in DPA's filter, as in the released code."""


@dataclass(frozen=True, eq=False)
class PriorShift:
    """How far the bare erasure of eq. 5 moves an embedding in one layer: what eq. 6 filters by."""

    gain: Tensor
    """`n x d`: (I + C1'C1)^-1 C1', the same for every layer."""
    outputs: Tensor
    """`o x n`: W (C* - C1)."""

    def of(self, response: Tensor) -> Tensor:
        """`N`: |delta_erase c| for embeddings given by their response `gain @ c` (`n x N`)."""
        out, rank = self.outputs.shape
        gram = lower_gram(self.outputs.T) if rank <= out else None
        squares = [
            (self.outputs @ chunk).square().sum(dim=0)
            if gram is None
            else quadratic_form(gram, chunk)
            for chunk in response.split(_COLUMNS, dim=1)
        ]
        return torch.cat(squares).clamp(min=0).sqrt()


def erase_gain(targets: Tensor) -> Tensor:
    """`n x d`: eq. 5's factor (I + C1'C1)^-1 C1', without the layer, from mean-scaled targets."""
    system = targets @ targets.T
    system.diagonal().add_(1.0)
    return torch.cholesky_solve(targets, torch.linalg.cholesky(system))


def influence_filter(shift: Tensor, scale: float, groups: Tensor, concepts: int) -> Tensor:
    """`N` booleans: IPF (eq. 6), names whose shift (RMS of their rows) is above `scale` times the
    mean over names.

    Eq. 6 compares |delta_erase c0|^2 with its mean, which the paper calls mu; here, as in the
    released code, it is the norm itself, and `mu` is another thing (`closed_form`).

    Args:
        shift: `N`, how far the bare erasure moves each row.
        scale: alpha, a multiple of the mean.
        groups: `N`, the name that each row belongs to.
        concepts: Number of names.
    """
    rows = per_concept(torch.ones_like(shift), groups, concepts)
    by_name = (per_concept(shift.square(), groups, concepts) / rows).sqrt()
    return (by_name > scale * by_name.mean())[groups]


@dataclass(frozen=True, eq=False)
class RefinedPrior:
    """R_refine as a factor: the matrix is F'F / count with F = [omega c + tilt V ; tail V]."""

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
        """`(p + r)` square: F F' / count from C0'C0 and `along` = C0'V, without embeddings."""
        scale = self.count.rsqrt()
        omega, tilt, tail = self.omega * scale, self.tilt * scale, self.tail * scale
        projected = omega[:, None] * along[self.kept]
        rows, size = len(self.kept), len(self.kept) + len(tail)
        gram = omega.new_empty((size, size))
        corner = gram[:rows, :rows]
        torch.mul(retain_gram[self.kept[:, None], self.kept], omega[:, None], out=corner)
        corner.mul_(omega)
        # projected tilt' + its transpose + tilt tilt', both halves in one product
        half = projected + tilt / 2
        corner.addmm_(torch.cat([half, tilt], dim=1), torch.cat([tilt, half], dim=1).T)
        edge = (projected + tilt) @ tail.T
        gram[:rows, rows:], gram[rows:, :rows], gram[rows:, rows:] = edge, edge.T, tail @ tail.T
        return gram


def keep_only(kept: Tensor, weights: Tensor, width: int) -> RefinedPrior:
    """The kept rows without any draws.

    Args:
        kept: `p`, indices of the kept rows.
        weights: `N`, weights of all rows.
        width: d.
    """
    omega = weights[kept]
    return RefinedPrior(
        kept=kept,
        omega=omega.sqrt(),
        directions=weights.new_zeros((0, width)),
        tilt=weights.new_zeros((len(kept), 0)),
        tail=weights.new_zeros((0, 0)),
        count=omega.sum(),
        added=weights.new_zeros(()),
    )


def augment_directed(
    shift: PriorShift,
    kept: Tensor,
    weights: Tensor,
    response: Tensor,
    directions: Tensor,
    draws: Tensor,
    batches: Tensor,
    *,
    scale: float,
) -> RefinedPrior:
    """DPA (eqs. 7-9): draws along a layer's least-changing directions, filtered by IPF.

    As in the released code, each batch of rows is filtered by the mean of its own draws.

    Args:
        shift: The bare erasure of this layer.
        kept: `p`, indices of the rows that passed IPF.
        weights: `p`, their weights.
        response: `n x p`, `gain @ c` of those rows.
        directions: `r x d`, V_min'.
        draws: `p x N_A x r`, random numbers.
        batches: `p`, the batch of each row (see `filter_batches`).
        scale: IPF's multiple of the mean.
    """
    moved_along = shift.outputs @ (shift.gain @ directions.T)  # o x r: delta_erase V
    along = (shift.outputs.T @ moved_along).T @ response  # r x p: V' delta' delta c0
    squares = (
        shift.of(response).square()[:, None]
        + 2 * torch.einsum("par,rp->pa", draws, along)
        + torch.einsum("par,rs,pas->pa", draws, moved_along.T @ moved_along, draws)
    )
    moved = squares.clamp(min=0).sqrt()
    count = (len(kept) - 1) // FILTER_BATCH + 1
    sums = per_concept(moved.mean(dim=1) * weights, batches, count)
    mean = (sums / per_concept(weights, batches, count))[batches]
    passed = (moved > scale * mean[:, None]).to(weights)
    omega = (weights * (1 + passed.sum(dim=1))).sqrt()
    tilt = weights[:, None] * (passed[:, :, None] * draws).sum(dim=1) / omega[:, None]
    scatter = torch.einsum("p,pa,par,pas->rs", weights, passed, draws, draws)
    values, vectors = torch.linalg.eigh(scatter - tilt.T @ tilt)
    return RefinedPrior(
        kept=kept,
        omega=omega,
        directions=directions,
        tilt=tilt,
        tail=values.clamp(min=0).sqrt()[:, None] * vectors.T,  # its root
        count=omega.square().sum(),
        added=passed.sum(),
    )


def filter_batches(kept: Tensor, shuffle: Tensor) -> Tensor:
    """`p`: the batch of each kept row, when the shuffled kept rows are cut into batches.

    Args:
        kept: `p`, indices of the kept rows.
        shuffle: `N`, each row's position in the shuffled list.
    """
    return shuffle[kept].argsort().argsort() // FILTER_BATCH


def augment_random(
    shift: PriorShift,
    kept: Tensor,
    weights: Tensor,
    fresh: Callable[[], torch.Generator],
    *,
    times: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """RPA (ablation 4): draws in every direction; returns the correlation matrix (`d x d`) and the
    number of draws that passed.

    Here the embeddings have to be made, a slice at a time and twice: once for the mean, once for
    the sum.

    Args:
        shift: The bare erasure of this layer.
        kept: `p x d`, the rows that passed IPF.
        weights: `p`, their weights.
        fresh: Gives a generator with the same random numbers every time.
        times: Draws per row.
        scale: IPF's multiple of the mean.
    """

    def slices() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        source = fresh()
        for rows, weight in zip(kept.split(128), weights.split(128), strict=True):
            noise = normal((len(rows), times, rows.shape[1]), source, rows)
            noisy = (rows[:, None] + noise).flatten(0, 1)
            yield noisy, weight.repeat_interleave(times), shift.of(shift.gain @ noisy.T)

    total, draws = weights.new_zeros(()), weights.new_zeros(())
    for _, weight, moved in slices():
        total, draws = total + (weight * moved).sum(), draws + weight.sum()
    moment, count = (weights[:, None] * kept).T @ kept, weights.sum()
    added = weights.new_zeros(())
    for noisy, weight, moved in slices():
        passed = (moved > scale * total / draws).to(weights) * weight
        moment, count = moment + (passed[:, None] * noisy).T @ noisy, count + passed.sum()
        added = added + (passed > 0).sum()
    return moment / count, added


def smallest_directions(weight: Tensor, count: int) -> Tensor:
    """`count x d`: the directions in which a layer changes least (eq. 7), smallest last.

    Right singular vectors of the smallest singular values of the thin SVD, not the exact null
    vectors of a wide matrix, as in the released code. They are read from the Gram matrix of the
    shorter side, whose eigenproblem is several times faster than an SVD.
    """
    out, width = weight.shape
    short = weight if out <= width else weight.T
    values, vectors = torch.linalg.eigh(lower_gram(short))
    if bool(values[0] <= values[-1] * len(values) * torch.finfo(values.dtype).eps):
        # The Gram matrix cannot resolve a vanishing singular value.
        vectors = torch.linalg.svd(weight, full_matrices=False)[2][-min(count, len(short)) :]
    else:
        vectors = vectors[:, : min(count, len(short))].T.flip(0)
        if out <= width:
            vectors = torch.nn.functional.normalize(vectors @ weight, dim=1)
    # A singular vector's sign is free: the largest entry is made positive.
    largest = vectors.gather(1, vectors.abs().argmax(dim=1, keepdim=True))
    return vectors * largest.sign()
