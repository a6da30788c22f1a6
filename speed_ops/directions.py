"""The directions in which a layer changes least (eq. 7): its smallest right singular vectors."""

from __future__ import annotations

import torch
from torch import Tensor

from .draws import generator, normal
from .nullspace import lower_gram

_ROUGH_STEPS = 12  # enough to place a shift just below the smallest value, after which few more are needed
_ROUGH_MARGIN = 1e-3  # what single precision may have put the smallest value wrong, in a well conditioned layer
_STEPS = 80
_TOLERANCE = 1e-10  # error of a direction; the draws need it to about 1e-8
_SMALL = 64  # below this side an SVD is as fast


def smallest_directions(weight: Tensor, count: int) -> Tensor:
    """`count x d`: right singular vectors of the smallest singular values of the thin SVD, smallest last.

    Searched with a factorisation of the smaller Gram matrix in half the precision, judged in full precision on the
    weight itself; in full precision throughout where that fails, and an SVD where that fails too. The thin SVD's
    smallest, not the exact null vectors of a wide matrix, as in the released code.
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
    """`side x count`: eigenvectors of the smallest eigenvalues of `short short'`, smallest first; None: not found.

    `precision` is that of the Gram matrix and its factors, which only point the way.
    """
    gram = lower_gram(short.to(precision))
    factor, failed = torch.linalg.cholesky_ex(gram)
    if bool(failed):
        return None
    start = normal((len(gram), count), generator(0, "smallest directions"), short).to(gram)
    found, sizes, gap = _inverse_krylov(factor, start)
    if gap < 0.1:
        # A shift below the smallest value by a few times its uncertainty stands it far out among the others.
        margin = max(4 * gap, _ROUGH_MARGIN)
        gram.diagonal().sub_((1 - margin) / sizes[0])
        shifted, failed = torch.linalg.cholesky_ex(gram)
        factor = factor if bool(failed) else shifted
    return _corrected(short, found.to(short), factor)


def _corrected(short: Tensor, found: Tensor, factor: Tensor) -> Tensor | None:
    """Davidson's method: the space grows by what `factor` (L, roughly) makes of the residual, until that is nothing.

    L L' stands near `short short'` less its smallest eigenvalue, so the correction is as large as the vectors' error.
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
        basis, images = torch.cat([basis, fresh], dim=1), torch.cat([images, short @ (short.T @ fresh)], dim=1)
    return None


def _inverse_krylov(factor: Tensor, start: Tensor) -> tuple[Tensor, Tensor, float]:
    """Rough vectors, their values for the inverse of L L' and the largest relative residual."""
    count = start.shape[1]
    basis, images = torch.linalg.qr(start)[0], start[:, :0]
    for step in range(max(1, min(_ROUGH_STEPS, len(factor) // count))):
        if step:
            basis = torch.cat([basis, torch.linalg.qr(_outside(basis, images[:, -count:]))[0]], dim=1)
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
