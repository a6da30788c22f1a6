"""Problems for which the edits of the released code are recorded."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from problems import embeddings, row_set
from torch import Tensor

WIDTH = 96


@dataclass(frozen=True)
class Case:
    name: str
    preset: str
    concepts: int
    retain: int


CASES = (
    Case("few", "few", 3, 700),
    Case("multi, 10 names", "multi", 10, 60),
    Case("multi, 50 names", "multi", 50, 300),
    Case("implicit", "implicit", 1, 400),
)


class Problem:
    """Rows and weights of a case, the same on every machine."""

    def __init__(self, case: Case) -> None:
        generator = torch.Generator().manual_seed(sum(map(ord, case.name)))
        counts = [case.concepts, case.concepts, case.retain, 77]
        rows = embeddings(sum(counts), WIDTH, generator).split(counts)
        self.targets, self.anchors, self.retain, self.invariants = rows
        self.target_names = tuple(f"target{i}" for i in range(case.concepts))
        self.anchor_names = tuple(f"anchor{i}" for i in range(case.concepts))
        names = [f"kept{i:04}" for i in range(case.retain)]
        self.weights = {
            f"block{i}.attn2.to_v.weight": torch.randn(
                out, WIDTH, generator=generator, dtype=torch.float64
            )
            / WIDTH**0.5
            for i, out in enumerate((48, 144))
        }
        self.rows = row_set(
            self.targets,
            self.anchors,
            self.retain,
            self.invariants,
            target_names=self.target_names,
            retain_names=names,
        )


def fingerprint(delta: Tensor) -> list[float]:
    """A few numbers that change with every entry: the norm, and projections onto random vectors."""
    generator = torch.Generator().manual_seed(1)
    out, width = delta.shape
    left = torch.randn(3, out, generator=generator, dtype=torch.float64)
    right = torch.randn(width, 3, generator=generator, dtype=torch.float64)
    return [float(delta.norm()), *(left @ delta @ right).flatten().tolist()]
