"""Prior Knowledge Refinement (section 4): which retain rows matter, and which neighbours of theirs
to add.

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

from .draws import generator, normal
from .null_space import lower_gram, quadratic_form
from .rows import per_concept
from .settings import FilterUnit

_COLUMNS = 4096  # retain rows handled at a time: bounds the memory of intermediates


@dataclass(frozen=True, eq=False)
class PriorShift:
    """How far the bare erasure of eq. 5 would move an embedding, in one layer: the size that eq. 6
    filters by.
    """

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
            return quadratic_form(lower_gram(self.outputs.T), response)
        return (self.outputs @ response).square().sum(dim=0)


def erase_gain(targets: Tensor) -> Tensor:
    """`n x d`: the layer-independent factor of eq. 5, (I + C1'C1)^-1 C1', from mean-scaled target
    rows.
    """
    system = targets @ targets.T
    system.diagonal().add_(1.0)
    return torch.cholesky_solve(targets, torch.linalg.cholesky(system))


def influence_filter(
    shift: Tensor, scale: float, groups: Tensor, concepts: int, unit: FilterUnit
) -> Tensor:
    """`N` booleans: IPF (eq. 6), shift above `scale` times its mean, by row or by concept (RMS of
    its rows).

    Eq. 6 compares |delta_erase c0|^2 with its mean, which the paper calls mu; here, as in the
    released code, it is the norm itself, and `mu` is another thing (`closed_form`).
    """
    if unit == "row" or concepts == len(shift):
        return shift > scale * shift.mean()
    rows = per_concept(torch.ones_like(shift), groups, concepts)
    by_concept = (per_concept(shift.square(), groups, concepts) / rows).sqrt()
    return (by_concept > scale * by_concept.mean())[groups]


@dataclass(frozen=True, eq=False)
class RefinedPrior:
    """R_refine as a factor: the correlation matrix is F'F / count with F = [omega c + tilt V ; tail
    V].
    """

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
        """`(p + r)` square: F F' / count from C0'C0 and `along` = C0'V, without touching an
        embedding.
        """
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


def keep_only(kept: Tensor, weights: Tensor, directions: Tensor) -> RefinedPrior:
    """The kept rows without any draws."""
    rank = len(directions)
    empty = weights.new_zeros((len(kept), rank))
    omega = weights[kept]
    return RefinedPrior(
        kept=kept,
        omega=omega.sqrt(),
        directions=directions,
        tilt=empty,
        tail=empty.new_zeros((rank, rank)),
        count=omega.sum(),
        added=empty.new_zeros(()),
    )


@dataclass(frozen=True, eq=False)
class RowShifts:
    """The rows that passed IPF, and how the bare erasure moves them."""

    kept: Tensor
    """`p`: their places among the retain rows."""
    response: Tensor
    """`n x N`: `gain @ c` of every retain row."""
    sizes: Tensor
    """`p`: |delta_erase c|."""
    weights: Tensor
    """`p`"""


def augment_directed(
    shift: PriorShift, rows: RowShifts, directions: Tensor, draws: Tensor, *, scale: float
) -> RefinedPrior:
    """DPA (eqs. 7-9): `draws` (`p x N_A x r`) along the directions, filtered by IPF with one mean
    over all of them.
    """
    own = rows.weights
    moved_along = shift.outputs @ (shift.gain @ directions.T)  # o x r: delta_erase V
    # r x p: V' delta' delta c0
    along = ((shift.outputs.T @ moved_along).T @ rows.response)[:, rows.kept]
    squares = (
        rows.sizes.square()[:, None]
        + 2 * torch.einsum("par,rp->pa", draws, along)
        + torch.einsum("par,rs,pas->pa", draws, moved_along.T @ moved_along, draws)
    )
    moved = squares.clamp(min=0).sqrt()
    mean = (moved.mean(dim=1) * own).sum() / own.sum()
    passed = (moved > scale * mean).to(own)
    omega = (own * (1 + passed.sum(dim=1))).sqrt()
    tilt = own[:, None] * (passed[:, :, None] * draws).sum(dim=1) / omega[:, None]
    spread = torch.einsum("p,pa,par,pas->rs", own, passed, draws, draws)
    return RefinedPrior(
        kept=rows.kept,
        omega=omega,
        directions=directions,
        tilt=tilt,
        tail=_root(spread - tilt.T @ tilt),
        count=omega.square().sum(),
        added=passed.sum(),
    )


def _root(spread: Tensor) -> Tensor:
    """`r x r`: a root L of a positive semi-definite matrix, L'L = spread."""
    values, vectors = torch.linalg.eigh(spread)
    return values.clamp(min=0).sqrt()[:, None] * vectors.T


def augment_random(
    shift: PriorShift,
    chosen: Tensor,
    own: Tensor,
    fresh: Callable[[], torch.Generator],
    *,
    times: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """RPA (ablation 4): draws in every direction; returns the correlation matrix (`d x d`) and the
    number that passed.

    `chosen` (`p x d`) with weights `own` (`p`). Here the embeddings have to be made, a slice at a
    time and twice: once for the mean, once for the sum. `fresh` gives the same random numbers both
    times.
    """

    def slices() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        source = fresh()
        for rows, weight in zip(chosen.split(128), own.split(128), strict=True):
            noisy = (
                rows[:, None] + normal((len(rows), times, rows.shape[1]), source, rows)
            ).flatten(0, 1)
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


# The directions in which a layer changes least (eq. 7): its smallest right singular vectors.

# enough to place a shift just below the smallest value, after which few more are needed
_ROUGH_STEPS = 12
# what single precision may have put the smallest value wrong, in a well conditioned layer
_ROUGH_MARGIN = 1e-3
_STEPS = 80
_TOLERANCE = 1e-10  # error of a direction; the draws need it to about 1e-8
_SMALL = 64  # below this side an SVD is as fast


def smallest_directions(weight: Tensor, count: int) -> Tensor:
    """`count x d`: right singular vectors of the smallest singular values of the thin SVD, smallest
    last.

    Searched with a factorisation of the smaller Gram matrix in half the precision, judged in full
    precision on the weight itself; in full precision throughout where that fails, and an SVD where
    that fails too. The thin SVD's smallest, not the exact null vectors of a wide matrix, as in the
    released code.
    """
    out, width = weight.shape
    short = weight if out <= width else weight.T
    count = min(count, len(short))
    found = None
    for precision in (torch.float32, weight.dtype) if len(short) > _SMALL else ():
        if found is None:
            found = _smallest_left_vectors(short, count, precision)
    if found is None:
        return _signed(torch.linalg.svd(weight, full_matrices=False)[2][-count:])
    vectors = found.T.flip(0)
    if out <= width:
        vectors = torch.nn.functional.normalize(vectors @ weight, dim=1)
    return _signed(vectors)


def _smallest_left_vectors(short: Tensor, count: int, precision: torch.dtype) -> Tensor | None:
    """`side x count`: eigenvectors of the smallest eigenvalues of `short short'`, smallest first;
    None: not found.

    `precision` is that of the Gram matrix and its factors, which only point the way.
    """
    gram = lower_gram(short.to(precision))
    factor, failed = torch.linalg.cholesky_ex(gram)
    if bool(failed):
        return None
    start = normal((len(gram), count), generator(0, "smallest directions"), short).to(gram)
    found, sizes, gap = _inverse_krylov(factor, start)
    if gap < 0.1:
        # A shift below the smallest value by a few times its uncertainty stands it far out among
        # the others.
        margin = max(4 * gap, _ROUGH_MARGIN)
        gram.diagonal().sub_((1 - margin) / sizes[0])
        shifted, failed = torch.linalg.cholesky_ex(gram)
        factor = factor if bool(failed) else shifted
    return _corrected(short, found.to(short), factor)


def _corrected(short: Tensor, found: Tensor, factor: Tensor) -> Tensor | None:
    """Davidson's method: the space grows by what `factor` (L, roughly) makes of the residual, until
    that is nothing.

    L L' stands near `short short'` less its smallest eigenvalue, so the correction is as large as
    the vectors' error.
    """
    count = found.shape[1]
    basis = torch.linalg.qr(found)[0]
    images = short @ (short.T @ basis)
    for _ in range(min(_STEPS, len(short) // count - 1)):
        values, mix = torch.linalg.eigh(basis.T @ images)
        best = mix[:, :count]
        residual = images @ best - basis @ (best * values[:count])
        fresh = _outside(basis, torch.cholesky_solve(residual.to(factor), factor).to(basis))
        if float(fresh.norm(dim=0).max()) < _TOLERANCE:
            return basis @ best
        # Once more, scaled, for what the first pass leaves behind.
        fresh = torch.linalg.qr(_outside(basis, torch.linalg.qr(fresh)[0]))[0]
        basis, images = (
            torch.cat([basis, fresh], dim=1),
            torch.cat([images, short @ (short.T @ fresh)], dim=1),
        )
    return None


def _inverse_krylov(factor: Tensor, start: Tensor) -> tuple[Tensor, Tensor, float]:
    """Rough vectors, their values for the inverse of L L' and the largest relative residual."""
    count = start.shape[1]
    basis, images = torch.linalg.qr(start)[0], start[:, :0]
    for step in range(max(1, min(_ROUGH_STEPS, len(factor) // count))):
        if step:
            basis = torch.cat(
                [basis, torch.linalg.qr(_outside(basis, images[:, -count:]))[0]], dim=1
            )
        images = torch.cat([images, torch.cholesky_solve(basis[:, -count:], factor)], dim=1)
    values, mix = torch.linalg.eigh(basis.T @ images)  # the inverse seen from inside the space
    vectors, sizes = mix[:, -count:].flip(1), values[-count:].flip(0)
    found = basis @ vectors
    return found, sizes, float(((images @ vectors - found * sizes).norm(dim=0) / sizes).max())


def _outside(basis: Tensor, vectors: Tensor) -> Tensor:
    """The part of column vectors that is orthogonal to a basis."""
    return vectors - basis @ (basis.T @ vectors)


def _signed(vectors: Tensor) -> Tensor:
    """A singular vector's sign is free: the largest entry is made positive."""
    largest = vectors.gather(1, vectors.abs().argmax(dim=1, keepdim=True))
    return vectors * largest.sign()
