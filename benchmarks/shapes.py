"""Random weights and embeddings of the shapes and the spectra of real models."""

from __future__ import annotations

import torch
from torch import Tensor

SHAPES = {"sd1": (768, [320] * 5 + [640] * 5 + [1280] * 6)}
SHAPES["sdxl"] = (2048, [640] * 10 + [1280] * 60)
"""Width of the text embedding, and the outputs of each value layer."""

Problem = tuple[Tensor, Tensor, Tensor, Tensor]
"""Targets, anchors, retain names and the rows of the empty prompt."""


def embeddings(count: int, width: int, seed: int) -> Tensor:
    """Rows shaped like a text encoder's: a common part and a spectrum that falls by two decades."""
    source = torch.Generator().manual_seed(seed)
    turn = torch.randn(width, width, generator=source) / width**0.5
    rows = torch.randn(count, width, generator=source) * torch.logspace(0, -2, width) @ turn
    return 3 * rows + torch.randn(1, width, generator=source)


def problem(family: str, concepts: int, names: int) -> tuple[dict[str, Tensor], Problem]:
    """Weights of all layers, and the rows."""
    width, outs = SHAPES[family]
    source = torch.Generator().manual_seed(1)
    layers = [torch.randn(o, width, generator=source) / width**0.5 for o in outs]
    weights = {f"{i:02}.{len(layer)}": layer for i, layer in enumerate(layers)}
    rows = embeddings(2 * concepts + names + 77, width, 2)
    targets, anchors, retain, empty = rows.split([concepts, concepts, names, 77])
    return weights, (targets, anchors, retain, empty)
