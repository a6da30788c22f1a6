"""Random erasure problems shaped like text embeddings: a common part, a decaying spectrum,
neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass
class Made:
    """A problem's tensors, one concept a row."""

    weights: dict[str, Tensor]
    targets: Tensor
    anchors: Tensor
    retain: Tensor
    invariants: Tensor

    def args(self):
        return self.weights, self.targets, self.anchors, self.retain, self.invariants


def embeddings(count: int, width: int, generator: torch.Generator) -> Tensor:
    """Rows with a shared mean and a spectrum that falls by three decades, as CLIP's does."""
    spectrum = torch.logspace(0, -3, width, dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64))[0]
    rows = torch.randn(count, width, generator=generator, dtype=torch.float64) * spectrum @ turn
    return rows + torch.randn(1, width, generator=generator, dtype=torch.float64)


def make(
    width: int = 24,
    concepts: int = 2,
    retain: int = 40,
    outs: tuple[int, ...] = (16, 32),
    seed: int = 0,
    invariants: int = 9,
) -> Made:
    generator = torch.Generator().manual_seed(seed)
    rows = embeddings(2 * concepts + retain + invariants, width, generator)
    parts = rows.split([concepts, concepts, retain, invariants])
    weights = {
        f"layer{i}": torch.randn(out, width, generator=generator, dtype=torch.float64) / width**0.5
        for i, out in enumerate(outs)
    }
    return Made(weights, *parts)


def row_set(
    targets,
    anchors,
    retain=None,
    invariants=None,
    *,
    target_names=None,
    retain_names=None,
    **fields,
):
    """A `RowSet` from matrices, with any of its other fields."""
    from speed_erase import speed_ops

    rows = speed_ops.RowSet.of(
        targets,
        anchors,
        retain,
        invariants,
        target_names=target_names,
        retain_names=retain_names,
    )
    return replace(rows, **fields)


def solve(
    weights,
    targets,
    anchors,
    retain=None,
    invariants=None,
    settings=None,
    *,
    progress=None,
    **fields,
):
    """`speed_ops.solve` from matrices."""
    from speed_erase import speed_ops

    rows = row_set(targets, anchors, retain, invariants, **fields)
    return speed_ops.solve(weights, rows, settings, progress=progress)
