"""Transformer blocks that fill themselves from the file when they run: a large encoder never stands in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import FileError

RESIDENT_BYTES = 2**30
"""Encoders larger than this in float32 hold one block at a time: CLIP-G (2.8 GB) runs in an eighth of its size, T5-XXL
(19 GB) in a twentieth."""


class LazyBlocks:
    """The blocks of one encoder, all of the same shape.

    A small encoder's blocks are filled once and stay. A large one has a single block in all places, filled anew each
    time: its memory is never freed and taken again, which would leave the heap in pieces.
    """

    def __init__(
        self, layers: nn.ModuleList, read: Callable[[int], dict[str, Tensor]], device: torch.device, name: str
    ) -> None:
        """`layers`: modules without memory. `read`: the tensors of one block, named relative to it."""
        per_block = sum(parameter.numel() for parameter in layers[0].parameters())
        if 4 * per_block * len(layers) > RESIDENT_BYTES:
            layers = nn.ModuleList([layers[0]] * len(layers))
        for layer in dict.fromkeys(layers):
            layer.register_forward_pre_hook(self._fill)
        self.layers = layers
        self.tick: Callable[[], None] = lambda: None
        """Called before every block."""
        self._read, self._device, self._name = read, device, name
        self._next = 0
        self._content: dict[nn.Module, int] = {}
        """Which block's weights a module holds."""

    def first(self, count: int) -> nn.ModuleList:
        """The first `count` blocks, to be run once, in order."""
        self._next = 0
        chosen: nn.ModuleList = self.layers[:count]
        return chosen

    def _fill(self, module: nn.Module, inputs: Any) -> None:
        self.tick()
        index, self._next = self._next, self._next + 1
        if self._content.get(module) == index:
            return
        self._content.pop(module, None)  # an interrupt below must not leave a half-filled block that counts as whole
        block = self._read(index)
        if next(module.parameters()).is_meta:
            assign(module, block, self._device, self._name)
        else:
            _overwrite(module, block, self._name)
        self._content[module] = index


def let_go(module: nn.Module) -> None:
    """Frees a module's weights at once: modules refer to each other and would stay until Python looks for cycles."""
    for parameter in module.parameters():
        parameter.data = parameter.new_empty(0)


def assign(module: nn.Module, tensors: dict[str, Tensor], device: torch.device, name: str, strict: bool = True) -> None:
    """Gives a module without memory its weights."""
    wide = {key: tensor.to(device, torch.float32) for key, tensor in tensors.items()}
    try:
        module.load_state_dict(wide, strict=strict, assign=True)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise FileError(f"The text encoder '{name}' has tensors that do not fit together ({reason}).") from error


def _overwrite(module: nn.Module, tensors: dict[str, Tensor], name: str) -> None:
    """Gives a module other weights in the memory it has."""
    for key, parameter in module.named_parameters():
        if key not in tensors or tensors[key].shape != parameter.shape:
            raise FileError(f"The text encoder '{name}' has blocks of different shapes ({key}): the file is damaged.")
        parameter.copy_(tensors[key])
