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


@dataclass(frozen=True, eq=False)
class LayerMoments:
    """Second moments summed over layers: all that the inner step needs to know of the weights."""

    original: Tensor
    """`d x d`: sum of W'W."""
    edited: Tensor
    """`d x d`: sum of V'V."""
    crossed: Tensor
    """`d x d`: sum of V'W."""


def original_moment(layers: Iterable[Tensor]) -> Tensor:
    """`d x d`: sum of W'W; the same in every round."""
    total: Tensor | None = None
    for weight in layers:
        square = weight.T @ weight
        total = square if total is None else total + square
    assert total is not None
    return total


def edited_moments(
    original: Tensor, load: Callable[[str], Tensor], edits: Mapping[str, LayerEdit]
) -> LayerMoments:
    """Moments after the edit: V = W + up down differs from W by low-rank terms only.

    Args:
        original: `d x d`, sum of W'W.
        load: Returns a layer's ORIGINAL weight by key.
        edits: By layer key.
    """
    edited, crossed = original.clone(), original.clone()
    for key, edit in edits.items():
        back = load(key).T @ edit.up  # d x r: W' up
        cross = back @ edit.down  # W' delta
        edited += cross + cross.T + edit.down.T @ (edit.up.T @ edit.up) @ edit.down
        crossed += cross.T
    return LayerMoments(original, edited, crossed)


def leaking_rows(moments: LayerMoments, targets: Tensor, reg: float) -> Tensor:
    """`n x d`: for each target row the embedding c~ whose edited outputs come closest to its old
    ones.

    Args:
        moments: Moments of the layers before and after the edit.
        targets: `n x d`, the target rows.
        reg: Ridge, as a share of the mean diagonal of W'W.
    """
    ridged = moments.edited.clone()
    ridged.diagonal().add_(reg * moments.original.diagonal().mean())
    return torch.cholesky_solve(moments.crossed @ targets.T, torch.linalg.cholesky(ridged)).T


def leak(moments: LayerMoments, targets: Tensor, change: Tensor, leaking: Tensor) -> Tensor:
    """`n`: how much of the way from the anchor's output back to the target's the found embeddings
    still go, 0 to 1.

    Args:
        moments: Moments of the layers before and after the edit.
        targets: `n x d`, the target rows.
        change: `n x d`, from each target to its anchor.
        leaking: `n x d`, the embeddings that `leaking_rows` found.
    """
    missing = (
        ((leaking @ moments.edited) * leaking).sum(dim=1)
        - 2 * ((leaking @ moments.crossed) * targets).sum(dim=1)
        + ((targets @ moments.original) * targets).sum(dim=1)
    )
    total = ((change @ moments.original) * change).sum(dim=1)
    share = (missing.clamp(min=0) / total.clamp(min=torch.finfo(total.dtype).tiny)).sqrt()
    return (1 - share).clamp(min=0)
