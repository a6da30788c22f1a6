"""The directions in which a layer changes least (eq. 7): its smallest right singular vectors."""

from __future__ import annotations

import torch
from torch import Tensor

from .draws import generator, normal

_STEPS = 160
_CHECK_EVERY = 8
_TOLERANCE = 1e-12  # relative residual; the draws need the direction to about 1e-8, and close values cost digits
_SMALL = 64  # below this side an SVD is as fast


def smallest_directions(weight: Tensor, count: int) -> Tensor:
    """`count x d`: right singular vectors of the smallest singular values of the thin SVD, smallest last.

    A Krylov space of the inverse of the smaller Gram matrix; an SVD where that cannot work. The thin SVD's smallest,
    not the exact null vectors of a wide matrix, as in the released code.
    """
    out, width = weight.shape
    short = weight if out <= width else weight.T
    count = min(count, len(short))
    found = None
    if len(short) > _SMALL:
        factor, failed = torch.linalg.cholesky_ex(_lower_gram(short))
        found = None if bool(failed) else _smallest_eigenvectors(factor, count)
    if found is None:
        return _signed(torch.linalg.svd(weight, full_matrices=False)[2][-count:])
    vectors = found.T.flip(0)
    if out <= width:
        vectors = torch.nn.functional.normalize(vectors @ weight, dim=1)
    return _signed(vectors)


def _lower_gram(rows: Tensor) -> Tensor:
    """The lower triangle of rows @ rows.T, by blocks: a Cholesky factor reads no more, and it is half the work."""
    size = -(-len(rows) // 4)
    gram = rows.new_zeros((len(rows), len(rows)))
    for start in range(0, len(rows), size):
        gram[start:, start : start + size] = rows[start:] @ rows[start : start + size].T
    return gram


def _smallest_eigenvectors(factor: Tensor, count: int) -> Tensor | None:
    """`side x count`: eigenvectors of the smallest eigenvalues of L L', smallest first; None without convergence."""
    basis = torch.linalg.qr(normal((len(factor), count), generator(0, "smallest directions"), factor))[0]
    images = factor.new_zeros((len(factor), 0))
    for step in range(1, min(_STEPS, len(factor) // count)):
        images = torch.cat([images, torch.cholesky_solve(basis[:, -count:], factor)], dim=1)
        if step % _CHECK_EVERY == 0:
            values, mix = torch.linalg.eigh(basis.T @ images)  # the inverse seen from inside the space
            vectors, sizes = mix[:, -count:].flip(1), values[-count:].flip(0)
            found = basis @ vectors
            if bool(((images @ vectors - found * sizes).norm(dim=0) < _TOLERANCE * sizes).all()):
                return found
        block = images[:, -count:]
        for _ in range(2):  # once more, for what the first pass leaves behind
            block = torch.linalg.qr(block - basis @ (basis.T @ block))[0]
        basis = torch.cat([basis, block], dim=1)
    return None


def _signed(vectors: Tensor) -> Tensor:
    """A singular vector's sign is free: the largest entry is made positive."""
    largest = vectors.gather(1, vectors.abs().argmax(dim=1, keepdim=True))
    return vectors * largest.sign()
