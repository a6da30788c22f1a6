"""A text encoder inside a file, read tensor by tensor under `transformers`' names."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from ..architectures import TextEncoder as EncoderRow
from ..architectures import encoder_keys
from ..errors import FileError

STORED = torch.float16
"""ComfyUI holds text encoders in half precision, whatever the file has, and computes in float32. A float32 file that
is not rounded the same way gives embeddings that the model never sees (off by 1e-3)."""


class Tensors(Protocol):
    """A file's tensors by key; a plain dict or a lazy reader."""

    def keys(self) -> Iterable[str]: ...
    def __getitem__(self, key: str, /) -> Tensor: ...


class EncoderWeights(ABC):
    """One encoder's tensors. A subclass knows how the file spells them."""

    width: int
    layers: int
    """Blocks in the file."""

    def __init__(self, tensors: Tensors, row: EncoderRow) -> None:
        self._tensors = tensors
        self.row = row
        self.naming, self._file_keys = encoder_keys(row, tensors.keys())
        if not self._file_keys:
            raise FileError(
                f"The file holds no text encoder '{row.name}' (looked under {', '.join(row.prefixes)}): use a "
                "checkpoint that contains its text encoders, or the diffusers folder."
            )

    @property
    def complete_layers(self) -> int:
        """Blocks of the whole encoder, from which hidden layers are counted.

        A diffusers folder may leave out the blocks after the one the family uses; a shrunken encoder is complete.
        """
        return self.row.layers if self.layers == self.row.blocks_used else self.layers

    @abstractmethod
    def block(self, layer: int) -> dict[str, Tensor]:
        """One block's tensors, named relative to the block."""

    @abstractmethod
    def top(self) -> dict[str, Tensor]:
        """What stands outside the blocks: embedding tables and the final norm."""

    def digest(self, blocks: int) -> str:
        """Hash of all that the first `blocks` blocks compute with, the same for either spelling of the same weights."""
        total = hashlib.sha256()
        for name, tensor in self._used(blocks):
            total.update(f"{name} {tuple(tensor.shape)}\n".encode())
            total.update(tensor.contiguous().cpu().reshape(-1).view(torch.uint8).numpy().data)
        return total.hexdigest()

    def _used(self, blocks: int) -> Iterator[tuple[str, Tensor]]:
        yield from self.top().items()
        for layer in range(blocks):
            for name, tensor in sorted(self.block(layer).items(), key=lambda item: item[0]):
                yield f"{layer}.{name}", tensor

    def _count_layers(self, mark: str) -> int:
        """How many blocks there are; `mark` is the name of a tensor that each has, `{}` in the place of its number."""
        count = 0
        while mark.format(count) in self._file_keys:
            count += 1
        if count == 0:
            raise FileError(f"The text encoder '{self.row.name}' has no layers in this file: the file is incomplete.")
        return count

    def _shape(self, name: str, dimensions: int) -> tuple[int, ...]:
        """The shape of a tensor, from the header where the source has one: an embedding table is large."""
        key = self._key(name)
        shapes = getattr(self._tensors, "shapes", {})
        shape = tuple(shapes[key] if key in shapes else self._tensors[key].shape)
        if len(shape) != dimensions or 0 in shape:
            raise FileError(f"The text encoder '{self.row.name}' is damaged: '{key}' has the shape {shape}.")
        return shape

    def _key(self, name: str) -> str:
        if name not in self._file_keys:
            raise FileError(f"The text encoder '{self.row.name}' is incomplete: the file has no '{name}' for it.")
        return self._file_keys[name]
