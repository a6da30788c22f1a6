"""One exact low-rank edit per layer, which can be scaled, merged and undone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InputError


@dataclass(frozen=True, eq=False)
class LayerEdit:
    """delta = up @ down, to be added to the layer's weight."""

    up: Tensor
    """`o x r`"""
    down: Tensor
    """`r x d`"""

    @property
    def rank(self) -> int:
        """Number of rank-one terms."""
        return self.up.shape[1]

    def delta(self) -> Tensor:
        """`o x d`: the dense edit."""
        return self.up @ self.down

    def norm(self) -> Tensor:
        """Scalar: |delta|, through the small side of the edit."""
        return ((self.up.T @ self.up) * (self.down @ self.down.T)).sum().clamp(min=0).sqrt()

    def scaled(self, strength: float) -> LayerEdit:
        """The edit times a strength; 0 gives the zero edit."""
        return LayerEdit(self.up * strength, self.down)

    def merged(self, other: LayerEdit) -> LayerEdit:
        """The sum of two edits, as one."""
        return LayerEdit(torch.cat([self.up, other.up], dim=1), torch.cat([self.down, other.down]))

    def balanced(self) -> LayerEdit:
        """The same edit with orthogonal, equally sized factors, strongest term first.

        They survive half precision: no term is a small difference of large ones.
        """
        left, left_mix = torch.linalg.qr(self.up)
        right, right_mix = torch.linalg.qr(self.down.T)
        rotation, sizes, turn_back = torch.linalg.svd(left_mix @ right_mix.T)
        # Terms below rounding are no content; at least one term stays, so that the file names the
        # layer.
        tiny = sizes[:1] * torch.finfo(sizes.dtype).eps * len(sizes)
        rank = max(1, int((sizes > tiny).sum()))
        root = sizes[:rank].sqrt()
        up, down = (left @ rotation[:, :rank]) * root, root[:, None] * (turn_back[:rank] @ right.T)
        # A term's sign is free: the largest entry is made positive, the same on every machine.
        sign = down.gather(1, down.abs().argmax(dim=1, keepdim=True)).sign()
        sign[sign == 0] = 1.0
        return LayerEdit(up * sign.T, down * sign)

    def to(self, where: torch.dtype | torch.device | str) -> LayerEdit:
        """The factors in another precision or on another device."""
        return LayerEdit(self.up.to(where), self.down.to(where))


def merge(first: Mapping[str, LayerEdit], second: Mapping[str, LayerEdit]) -> dict[str, LayerEdit]:
    """The sum of two sets of edits, layer by layer."""
    merged = dict(first)
    for key, edit in second.items():
        merged[key] = merged[key].merged(edit) if key in merged else edit
    return merged


def apply_edits(
    weights: Mapping[str, Tensor], edits: Mapping[str, LayerEdit], strength: float = 1.0
) -> dict[str, Tensor]:
    """Edited copies of the layers; computed in the edit's precision and returned in the weights'
    own.

    Args:
        weights: {layer key: `o x d`}.
        edits: By layer key.
        strength: Scale of the edits.
    """
    missing = [key for key in edits if key not in weights]
    if missing:
        raise InputError(
            f"The edit has {len(missing)} layers that the model lacks, such as {missing[0]}."
        )
    if strength == 0:
        return {key: weights[key].clone() for key in edits}
    return {
        key: (weights[key].to(edit.up) + strength * edit.delta()).to(weights[key].dtype)
        for key, edit in edits.items()
    }


def original_weights(
    weights: Mapping[str, Tensor], edits: Mapping[str, LayerEdit]
) -> dict[str, Tensor]:
    """The weights before an edit; exact up to rounding in the weights' precision."""
    return apply_edits(weights, edits, strength=-1.0)
