"""Weights of 8 bits that are stored with a scale beside them."""

from __future__ import annotations

from collections.abc import Callable, Container

import torch
from torch import Tensor

_SCALES = ("scale_weight", "weight_scale")
"""What the scale is called in the place of `weight`: the older name and ComfyUI's newer one."""


def read_scaled(read: Callable[[str], Tensor], present: Container[str], key: str) -> tuple[Tensor, bool]:
    """A tensor as it is stored, or in float32 with its scale multiplied in (then True) where it is fp8 and has one."""
    value = read(key)
    if value.element_size() == 1 and value.dtype.is_floating_point:
        for name in _SCALES:
            scale = key.removesuffix("weight") + name
            if scale in present:
                return value.to(torch.float32) * read(scale).to(torch.float32), True
    return value, False
