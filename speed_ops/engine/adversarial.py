"""Adversarial rounds (the paper's "w/ AT", after RECE): find the embeddings that still draw the
target, erase them too.

With W_i the original and V_i the edited weight of layer i, the embedding nearest to the target's
old output is

    c~ = argmin_c sum_i |V_i c - W_i c1|^2 + reg |c|^2 = (sum_i V_i'V_i + reg I)^-1 (sum_i V_i'W_i)
    c1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .edits import LayerEdit


@dataclass(frozen=True)
class Round:
    """The leak before an adversarial round (round 0: after the first edit)."""

    number: int
    mean_leak: float
    worst_leak: float
    kept: bool = True
    """False for a last round that lowered the leak too little: its edit was dropped."""


def original_moment(layers: Iterable[Tensor]) -> Tensor:
    """`d x d`: sum of W'W; the same in every round."""
    total: Tensor | None = None
    for weight in layers:
        square = weight.T @ weight
        total = square if total is None else total + square
    assert total is not None
    return total


def find_leaks(
    original: Tensor,
    load: Callable[[str], Tensor],
    edits: Mapping[str, LayerEdit],
    targets: Tensor,
    change: Tensor,
    reg: float,
) -> tuple[Tensor, Tensor]:
    """`n x d`: for each target row the embedding c~; and `n`: how much of the way from the anchor's
    output back to the target's it still goes, 0 to 1.

    Args:
        original: `d x d`, sum of W'W.
        load: Returns a layer's ORIGINAL weight by key.
        edits: By layer key.
        targets: `n x d`, the target rows.
        change: `n x d`, from each target to its anchor.
        reg: Ridge, as a share of the mean diagonal of W'W.
    """
    # sums of V'V and V'W: V = W + up down differs from W by low-rank terms only
    edited, crossed = original.clone(), original.clone()
    for key, edit in edits.items():
        back = load(key).T @ edit.up  # d x r: W' up
        cross = back @ edit.down  # W' delta
        edited += cross + cross.T + edit.down.T @ (edit.up.T @ edit.up) @ edit.down
        crossed += cross.T
    ridged = edited.clone()
    ridged.diagonal().add_(reg * original.diagonal().mean())
    leaking = torch.cholesky_solve(crossed @ targets.T, torch.linalg.cholesky(ridged)).T
    missing = (
        ((leaking @ edited) * leaking).sum(dim=1)
        - 2 * ((leaking @ crossed) * targets).sum(dim=1)
        + ((targets @ original) * targets).sum(dim=1)
    )
    total = ((change @ original) * change).sum(dim=1)
    share = (missing.clamp(min=0) / total.clamp(min=torch.finfo(total.dtype).tiny)).sqrt()
    return leaking, (1 - share).clamp(min=0)
