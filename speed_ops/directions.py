"""The directions in which a layer changes least (eq. 7): its smallest right singular vectors."""

from __future__ import annotations

import torch
from torch import Tensor

from .draws import generator, normal

_GUARD = 8  # extra vectors in the block: convergence then depends on the (r + 8)-th value, not on the next one
_ROUNDS = 60
_TOLERANCE = 1e-11  # relative residual; the draws need the direction to about 1e-8


def smallest_directions(weight: Tensor, count: int) -> Tensor:
    """`count x d`: right singular vectors of the smallest singular values of the thin SVD, smallest last.

    Block inverse iteration on a Cholesky factor of the smaller Gram matrix; an SVD where that cannot work. The thin
    SVD's smallest, not the exact null vectors of a wide matrix, as in the released code.
    """
    out, width = weight.shape
    side = min(out, width)
    count = min(count, side)
    gram = weight @ weight.T if out <= width else weight.T @ weight
    factor, info = torch.linalg.cholesky_ex(gram)
    found = None
    if side > 4 * (count + _GUARD) and not bool(info):
        found = _inverse_iteration(gram, factor, count)
    if found is None:
        return _signed(torch.linalg.svd(weight, full_matrices=False)[2][-count:])
    vectors = found.T.flip(0)
    if out <= width:
        vectors = torch.nn.functional.normalize(vectors @ weight, dim=1)
    return _signed(vectors)


def _inverse_iteration(gram: Tensor, factor: Tensor, count: int) -> Tensor | None:
    """`side x count`: eigenvectors of the smallest eigenvalues, smallest first; None where it does not converge."""
    block = normal((len(gram), count + _GUARD), generator(0, "smallest directions"), gram)
    for step in range(_ROUNDS):
        block = torch.linalg.qr(torch.cholesky_solve(block, factor))[0]
        if step % 4 != 3:
            continue
        values, mix = torch.linalg.eigh(block.T @ (gram @ block))
        block = block @ mix
        wanted = block[:, :count]
        gap = (gram @ wanted - wanted * values[:count]).norm(dim=0) / values[count : count + 1]
        if bool((gap < _TOLERANCE).all()):
            return wanted
    return None


def _signed(vectors: Tensor) -> Tensor:
    """A singular vector's sign is free: the largest entry is made positive."""
    largest = vectors.gather(1, vectors.abs().argmax(dim=1, keepdim=True))
    return vectors * largest.sign()
