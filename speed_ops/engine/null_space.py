"""The null space of the refined kept rows (eq. 2), stored as the span that an edit must avoid.

P x = x - K'K x, with K the eigenvectors of the correlation matrix that count as retained. P itself
is never formed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class KeptSpan:
    """What the edit must not touch."""

    basis: Tensor
    """`q x d`: orthonormal rows K."""
    exact: bool = True
    """False for a basis from a Gram matrix: orthonormal only to the root of its conditioning."""

    @property
    def room(self) -> int:
        """Dimension of the null space: the degrees of freedom left for erasing (eq. 4)."""
        return self.basis.shape[1] - len(self.basis)

    def remove(self, rows: Tensor) -> Tensor:
        """Rows times P; a second pass squares the error of an inexact basis."""
        for _ in range(1 if self.exact else 2):
            rows = rows - (rows @ self.basis.T) @ self.basis
        return rows

    def joined(self, rows: Tensor, cut: float = 1e-10) -> KeptSpan:
        """The span enlarged by rows; directions it has (to `cut` of their size) add nothing."""
        outside = self.remove(rows)
        _, sizes, basis = torch.linalg.svd(outside, full_matrices=False)
        fresh = self.remove(basis[sizes > cut * torch.linalg.matrix_norm(rows)])
        return KeptSpan(
            torch.cat([self.basis, torch.nn.functional.normalize(fresh, dim=1)]), self.exact
        )


def empty_span(like: Tensor) -> KeptSpan:
    """Nothing is retained: P is the identity."""
    return KeptSpan(like.new_zeros((0, like.shape[1])))


def span_of_moment(moment: Tensor, threshold: float) -> KeptSpan:
    """The span from the correlation matrix itself (`d x d`; its lower triangle is enough).

    Eigenvalues of at least `threshold` count as retained, as in the released code.
    """
    values, vectors = torch.linalg.eigh(moment)
    return KeptSpan(vectors[:, int((values < threshold).sum()) :].T)


def span_of_gram(gram: Tensor, factor: Tensor, threshold: float) -> KeptSpan:
    """The same span from the smaller side.

    Args:
        gram: `p x p`, F F'.
        factor: `p x d`, F, a factor of the correlation matrix.
        threshold: Eigenvalues of at least this size count as retained.
    """
    values, vectors = torch.linalg.eigh(gram)
    # A rounding-sized eigenvalue of the Gram matrix has no direction in the embedding space.
    noise = values[-1:] * len(values) * torch.finfo(values.dtype).eps
    first = int(((values < threshold) | (values <= noise)).sum())
    return KeptSpan((vectors[:, first:] * values[first:].rsqrt()).T @ factor, exact=False)


def lower_gram(rows: Tensor) -> Tensor:
    """rows @ rows.T, only its lower triangle: symmetric solvers read no more."""
    gram = rows.new_zeros((len(rows), len(rows)))
    for start, stop in _blocks(len(rows)):
        gram[start:, start:stop] = rows[start:] @ rows[start:stop].T
    return gram


def quadratic_form(lower: Tensor, columns: Tensor) -> Tensor:
    """`N`: c' G c for every column c (`n x N`), from the lower triangle that `lower_gram` makes."""
    total = columns.new_zeros(columns.shape[1])
    for start, stop in _blocks(len(columns)):
        image = lower[start:, start:stop] @ columns[start:stop]
        image[stop - start :] *= 2  # what is above the diagonal is the same once more
        total += (image * columns[start:]).sum(dim=0)
    return total


def _blocks(size: int) -> Iterator[tuple[int, int]]:
    """Four parts of a triangle's side: saves three of eight products and keeps them large."""
    step = max(1, -(-size // 4))
    for start in range(0, size, step):
        yield start, min(start + step, size)
