"""Erasing a second list from a model that has already been erased, without bringing the first back.

Two ways. Jointly: take the first edit off and solve both lists from the original weights. Incrementally: leave the
first edit in and hold its targets where it put them, which needs no original. With the same null space the two give the
same model, because the held targets are exactly the quadratic that the first solve left behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from .erase import solve
from .erasure import Erasure, LayerEdit, apply_edits
from .rows import Rows, join
from .settings import EraseSettings


def original_weights(weights: Mapping[str, Tensor], edits: Mapping[str, LayerEdit]) -> dict[str, Tensor]:
    """The weights before an edit; exact up to rounding in the weights' precision."""
    return apply_edits(weights, edits, strength=-1.0)


def erase_jointly(
    weights: Mapping[str, Tensor],
    earlier: Erasure,
    targets: Rows,
    anchors: Rows,
    retain: Tensor | Rows | None,
    invariants: Tensor | None,
    settings: EraseSettings,
    **options: Any,
) -> Erasure:
    """Solves the earlier and the new list together; `weights` are the ORIGINAL ones (see `original_weights`)."""
    both = join([earlier.targets, targets]), join([earlier.anchors, anchors])
    return solve(weights, *both, retain, invariants, settings, **options)


def erase_further(
    weights: Mapping[str, Tensor],
    earlier: Rows,
    targets: Rows,
    anchors: Rows,
    retain: Tensor | Rows | None,
    invariants: Tensor | None,
    settings: EraseSettings,
    **options: Any,
) -> Erasure:
    """Solves the new list alone on EDITED weights, the earlier targets held at their anchors; the edits then add up."""
    return solve(weights, targets, anchors, retain, invariants, settings, hold=earlier, **options)
