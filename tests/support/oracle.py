"""SPEED written straight from the paper: dense, float64, every matrix and every perturbed embedding
made.

Columns are embeddings, letters are the paper's. Slow on purpose; nothing here is shared with the
engine.
"""

from __future__ import annotations

import numpy as np


def delta_erase(W, C1, Cs, weight):
    """Eq. 5, with the released code's mean over concepts (`weight` holds each column's share of
    it).
    """
    C1C1, CsC1 = (C1 * weight) @ C1.T, (Cs * weight) @ C1.T
    return W @ (CsC1 - C1C1) @ np.linalg.inv(np.eye(len(C1)) + C1C1)


def filtered(delta, C, scale, share):
    """Eq. 6 by column: the released code's norm against its (weighted) mean."""
    shift = np.linalg.norm(delta @ C, axis=0)
    if not len(shift):
        return shift > 0
    return shift > scale * (shift * share).sum() / share.sum()


def smallest(W, r):
    """Eq. 7: the thin SVD's last right singular vectors, the largest entry made positive."""
    V = np.linalg.svd(W, full_matrices=False)[2][-r:]
    return np.stack([v * np.sign(v[np.argmax(np.abs(v))]) for v in V])


def projector(R, threshold):
    """Eq. 2 with the released code's threshold."""
    U, size, _ = np.linalg.svd(R)
    null = size < threshold
    return U[:, null] @ U[:, null].T


def speed(
    W,
    C1,
    Cs,
    C0,
    C2,
    s,
    *,
    target_share,
    retain_share,
    keep=None,
    draws=None,
    noise=None,
    shuffle=None,
):
    """One layer's delta. `draws` (N x N_A x r) or `noise` (N x N_A x d) are the random numbers to
    use, `shuffle` (N) each row's position when DPA cuts the kept rows into batches of 128.
    """
    d = len(C1)
    P = np.eye(d)
    if C0.shape[1]:
        delta = delta_erase(W, C1, Cs, target_share)
        refine = s.method == "speed"
        kept = np.ones(C0.shape[1], bool)
        if refine and s.ipf:
            kept = (
                keep
                if keep is not None
                else filtered(delta, C0, s.filter_scale, np.ones(C0.shape[1]))
            )
        if kept.any():
            columns, share = [C0[:, kept]], [retain_share[kept]]
            if refine and (s.dpa or s.rpa) and s.augmentations:
                eps = draws[kept] @ smallest(W, s.augment_rank) if s.dpa else noise[kept]
                moved = (C0.T[kept][:, None] + eps).reshape(-1, d).T
                own = np.repeat(retain_share[kept], s.augmentations)
                good = filtered(delta, moved, s.filter_scale, own)
                if s.dpa:
                    batch = np.argsort(np.argsort(shuffle[kept])) // 128
                    of_draw = np.repeat(batch, s.augmentations)
                    for number in np.unique(batch):
                        inside = of_draw == number
                        good[inside] = filtered(
                            delta, moved[:, inside], s.filter_scale, own[inside]
                        )
                columns.append(moved[:, good])
                share.append(own[good])
            R, w = np.concatenate(columns, axis=1), np.concatenate(share)
            P = projector((R * w) @ R.T / w.sum(), s.threshold)
    C1C1, CsC1 = (C1 * target_share) @ C1.T, (Cs * target_share) @ C1.T
    M = np.linalg.inv(C1C1 @ P + s.lam * np.eye(d))  # eq. 12
    Q = np.eye(d)
    if s.iec and s.method == "speed" and C2.shape[1]:
        inner = C2.T @ P @ M @ C2 + s.mu * np.eye(C2.shape[1])
        Q = Q - M @ C2 @ np.linalg.pinv(inner, rcond=1e-11, hermitian=False) @ C2.T @ P
    return s.overshoot * W @ (CsC1 - C1C1) @ P @ Q @ M  # eq. 11


def soft(W, C1, Cs, C0, C2, s, *, target_share, retain_share):
    """One layer's delta with a soft prior: the objective's own equations, the constraints by
    Lagrange multipliers.

    min |D C1 - W (Cs - C1)|^2 + (lam / tau) |D C0|^2 + lam |D|^2, all of them means, with D C2 = 0.
    """
    d = len(C1)
    R = (C0 * retain_share) @ C0.T / retain_share.sum()
    tau = s.softness * np.trace(R) / d
    held = [C2] if s.iec else []
    C1C1, CsC1 = (C1 * target_share) @ C1.T, (Cs * target_share) @ C1.T
    A, B = C1C1 + s.lam / tau * R + s.lam * np.eye(d), W @ (CsC1 - C1C1)
    if not held or not sum(part.shape[1] for part in held):
        return s.overshoot * B @ np.linalg.inv(A)
    U, size, _ = np.linalg.svd(np.concatenate(held, axis=1))
    H = U[:, : int((size > 1e-9 * size[0]).sum())]
    system = np.block([[A, H], [H.T, np.zeros((H.shape[1], H.shape[1]))]])
    wanted = np.concatenate([B, np.zeros((len(B), H.shape[1]))], axis=1)
    return s.overshoot * (wanted @ np.linalg.inv(system))[:, :d]


def uce(W, C1, Cs, C0, s, *, target_share, retain_share):
    """Appendix B.1: weighted least squares, sums over concepts."""
    C1C1, CsC1 = (C1 * target_share) @ C1.T, (Cs * target_share) @ C1.T
    system = (
        s.erase_weight * C1C1
        + s.preserve_weight * (C0 * retain_share) @ C0.T
        + s.lam * np.eye(len(C1))
    )
    return s.overshoot * s.erase_weight * W @ (CsC1 - C1C1) @ np.linalg.inv(system)


def adversarial(Ws, Vs, C1, reg):
    """RECE's inner step over all layers."""
    d = len(C1)
    scale = np.mean(np.diag(sum(W.T @ W for W in Ws)))
    return (
        np.linalg.inv(reg * scale * np.eye(d) + sum(V.T @ V for V in Vs))
        @ sum(V.T @ W for V, W in zip(Vs, Ws, strict=True))
        @ C1
    )
