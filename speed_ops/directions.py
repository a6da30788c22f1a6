"""The directions in which a layer changes least (eq. 7): its smallest right singular vectors."""

from __future__ import annotations

import torch
from torch import Tensor

from .draws import generator, normal
from .nullspace import lower_gram

_ROUGH_STEPS = 12  # enough to place a shift just below the smallest value, after which few more are needed
_ROUGH_MARGIN = 1e-3  # what single precision may have put the smallest value wrong, in a well conditioned layer
_STEPS = 160
_CHECK_EVERY = 4
_TOLERANCE = 1e-10  # relative residual; the draws need the direction to about 1e-8, and close values cost digits
_SMALL = 64  # below this side an SVD is as fast


def smallest_directions(weight: Tensor, count: int) -> Tensor:
    """`count x d`: right singular vectors of the smallest singular values of the thin SVD, smallest last.

    A Krylov space of the inverse of the smaller Gram matrix; an SVD where that cannot work. The thin SVD's smallest,
    not the exact null vectors of a wide matrix, as in the released code.
    """
    out, width = weight.shape
    short = weight if out <= width else weight.T
    count = min(count, len(short))
    found = _smallest_eigenvectors(lower_gram(short), count) if len(short) > _SMALL else None
    if found is None:
        return _signed(torch.linalg.svd(weight, full_matrices=False)[2][-count:])
    vectors = found.T.flip(0)
    if out <= width:
        vectors = torch.nn.functional.normalize(vectors @ weight, dim=1)
    return _signed(vectors)


def _smallest_eigenvectors(gram: Tensor, count: int) -> Tensor | None:
    """`side x count`: eigenvectors of the smallest eigenvalues, smallest first; None where it does not work out."""
    factor, failed = torch.linalg.cholesky_ex(gram.to(torch.float32))  # half the cost, and a rough place is enough
    if bool(failed):
        factor, failed = torch.linalg.cholesky_ex(gram)
        if bool(failed):
            return None
    start = normal((len(gram), count), generator(0, "smallest directions"), gram).to(factor)
    found, sizes, gap = _inverse_krylov(factor, start, _ROUGH_STEPS)
    shifted = gram.clone()
    if gap < 0.1:
        # A shift below the smallest value by a few times its uncertainty stands it far out among the others.
        margin = max(4 * gap, _ROUGH_MARGIN)
        shifted.diagonal().sub_((1 - margin) / sizes[0].to(gram))
    factor, failed = torch.linalg.cholesky_ex(shifted)
    if bool(failed):
        factor, _ = torch.linalg.cholesky_ex(gram)
    found, _, gap = _inverse_krylov(factor, found.to(gram), _STEPS)
    return found if gap < _TOLERANCE else None


def _inverse_krylov(factor: Tensor, start: Tensor, steps: int) -> tuple[Tensor, Tensor, float]:
    """Best vectors, their values for the inverse of L L' and the largest relative residual, after at most `steps`."""
    count = start.shape[1]
    basis = torch.linalg.qr(start)[0]
    images = start[:, :0]
    for step in range(1, min(steps, len(factor) // count) + 1):
        images = torch.cat([images, torch.cholesky_solve(basis[:, -count:], factor)], dim=1)
        if step % _CHECK_EVERY == 0:
            values, mix = torch.linalg.eigh(basis.T @ images)  # the inverse seen from inside the space
            vectors, sizes = mix[:, -count:].flip(1), values[-count:].flip(0)
            found = basis @ vectors
            gap = float(((images @ vectors - found * sizes).norm(dim=0) / sizes).max())
            if gap < _TOLERANCE:
                break
        block = images[:, -count:]
        for _ in range(2):  # once more, for what the first pass leaves behind
            block = torch.linalg.qr(block - basis @ (basis.T @ block))[0]
        basis = torch.cat([basis, block], dim=1)
    return found, sizes, gap


def _signed(vectors: Tensor) -> Tensor:
    """A singular vector's sign is free: the largest entry is made positive."""
    largest = vectors.gather(1, vectors.abs().argmax(dim=1, keepdim=True))
    return vectors * largest.sign()
