"""The same erasure computed the dense ways: in the released code's arithmetic, and written well.

Both are written from the equations, not from the released code's text.
"""

from __future__ import annotations

import torch
from torch import Tensor

from speed_erase.speed_ops.engine.settings import EraseSettings

CHUNK = 128  # concepts whose outer products are held at a time


def released(
    W: Tensor, C1: Tensor, Cs: Tensor, C0: Tensor, C2: Tensor, s: EraseSettings, draws: bool = True
) -> Tensor:
    """One layer in the released code's arithmetic: outer products, SVDs, explicit inverses."""
    eye = torch.eye(len(C1.T), dtype=W.dtype)
    C1C1 = _outer_sum(C1, C1) / len(C1)
    CsC1 = _outer_sum(Cs, C1) / len(C1)
    erase = W @ (CsC1 - C1C1) @ (eye + C1C1).inverse()
    shift = (C0 @ erase.T).norm(dim=1)
    kept = C0[shift > shift.mean()]
    total, count = _outer_sum(kept, kept), len(kept)
    if draws:
        V = torch.linalg.svd(W, full_matrices=False)[2]
        P_min = V[-s.augment_rank :].T @ V[-s.augment_rank :]
        for part in kept.split(CHUNK):
            noise = torch.randn(s.augmentations, len(part), W.shape[1], dtype=W.dtype) @ P_min
            moved = (part + noise).flatten(0, 1)
            size = (moved @ erase.T).norm(dim=1)
            good = moved[size > size.mean()]
            total, count = total + _outer_sum(good, good), count + len(good)
    U, values, _ = torch.linalg.svd(total / count)
    null = U[:, values < s.threshold]
    P = null @ null.T
    M = (C1C1 @ P + s.lam * eye).inverse()
    inner = (C2 @ P @ M @ C2.T + s.mu * torch.eye(len(C2), dtype=W.dtype)).inverse()
    Q = eye - M @ C2.T @ inner @ C2 @ P
    return W @ (CsC1 - C1C1) @ P @ Q @ M


def written_well(
    W: Tensor, C1: Tensor, Cs: Tensor, C0: Tensor, C2: Tensor, s: EraseSettings, draws: bool = True
) -> Tensor:
    """The same dense formulas with matrix products, symmetric eigenproblems and solves."""
    n = len(C1)
    eye = torch.eye(C1.shape[1], dtype=W.dtype)
    C1C1, change = C1.T @ C1 / n, W @ ((Cs - C1).T @ C1 / n)
    erase = torch.linalg.solve(eye + C1C1, change, left=False)
    shift = (C0 @ erase.T).norm(dim=1)
    kept = C0[shift > shift.mean()]
    total, count = kept.T @ kept, len(kept)
    if draws:
        V = torch.linalg.svd(W, full_matrices=False)[2][-s.augment_rank :]
        noise = torch.randn(s.augmentations, len(kept), s.augment_rank, dtype=W.dtype) @ V
        moved = (kept + noise).flatten(0, 1)
        size = (moved @ erase.T).norm(dim=1)
        good = moved[size > size.mean()]
        total, count = total + good.T @ good, count + len(good)
    values, vectors = torch.linalg.eigh(total / count)
    null = vectors[:, values < s.threshold]
    P = null @ null.T
    M = torch.linalg.inv(C1C1 @ P + s.lam * eye)
    inner = C2 @ P @ M @ C2.T + s.mu * torch.eye(len(C2), dtype=W.dtype)
    return change @ P @ (M - M @ C2.T @ torch.linalg.solve(inner, C2 @ P @ M))


def _outer_sum(left: Tensor, right: Tensor) -> Tensor:
    total = torch.zeros(left.shape[1], left.shape[1], dtype=left.dtype)
    for columns, rows in zip(left.split(CHUNK), right.split(CHUNK), strict=True):
        total += torch.bmm(columns.unsqueeze(2), rows.unsqueeze(1)).sum(dim=0)
    return total
