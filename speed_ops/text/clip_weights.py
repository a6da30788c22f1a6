"""A CLIP text encoder inside a file, whatever its spelling, read tensor by tensor under `transformers`' names."""

from __future__ import annotations

import hashlib
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


# transformers' module -> OpenCLIP's, inside one block; the three attention inputs are one stacked matrix there.
_BLOCK = {
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
    "self_attn.out_proj": "attn.out_proj",
}
_ATTENTION_INPUTS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_TOP = {
    "embeddings.token_embedding.weight": "token_embedding.weight",
    "embeddings.position_embedding.weight": "positional_embedding",
    "final_layer_norm.weight": "ln_final.weight",
    "final_layer_norm.bias": "ln_final.bias",
}


class ClipWeights:
    """One encoder's tensors, under the names that they have in `transformers`' text model."""

    def __init__(self, tensors: Tensors, row: EncoderRow) -> None:
        self._tensors = tensors
        self.row = row
        naming, self._file_keys = encoder_keys(row, tensors.keys())
        if not self._file_keys:
            raise FileError(
                f"The file holds no text encoder '{row.name}' (looked under {', '.join(row.prefixes)}): use a "
                "checkpoint that contains its text encoders, or the diffusers folder."
            )
        self._open_clip = naming == "open_clip"
        self.layers = self._count_layers()
        """Blocks in the file."""
        self.vocabulary, self.width = self._shape("embeddings.token_embedding.weight", 2)
        self.positions, _ = self._shape("embeddings.position_embedding.weight", 2)
        (self.inner_width,) = self._shape("encoder.layers.0.mlp.fc1.bias", 1)

    @property
    def complete_layers(self) -> int:
        """Blocks of the whole encoder, from which hidden layers are counted.

        A diffusers folder may leave out the blocks after the one the family uses; a shrunken encoder is complete.
        """
        return self.row.layers if self.layers == self.row.blocks_used else self.layers

    def block(self, layer: int) -> dict[str, Tensor]:
        """One block's tensors, named relative to the block."""
        modules = _BLOCK if self._open_clip else (*_BLOCK, *_ATTENTION_INPUTS)
        names = [f"{module}.{leaf}" for module in modules for leaf in ("weight", "bias")]
        found = {name: self._read(self._spelled(f"encoder.layers.{layer}.{name}")) for name in names}
        if self._open_clip:
            for leaf in ("weight", "bias"):
                stacked = self._read(f"transformer.resblocks.{layer}.attn.in_proj_{leaf}")
                parts = stacked.split(max(1, len(stacked) // 3))
                found |= {f"{module}.{leaf}": part for module, part in zip(_ATTENTION_INPUTS, parts, strict=False)}
        return found

    def top(self) -> dict[str, Tensor]:
        """What stands outside the blocks: embedding tables and the final norm."""
        return {name: self._read(self._spelled(name)) for name in _TOP}

    def projection(self) -> Tensor | None:
        """`pooled width x d`: maps the end token's last state to the pooled embedding; None where the file has none."""
        if "text_projection" in self._file_keys:  # OpenCLIP multiplies from the other side
            return self._read("text_projection").T
        return self._read("text_projection.weight") if "text_projection.weight" in self._file_keys else None

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

    def _count_layers(self) -> int:
        mark = (
            "transformer.resblocks.{}.ln_1.weight"
            if self._open_clip
            else "text_model.encoder.layers.{}.layer_norm1.weight"
        )
        count = 0
        while mark.format(count) in self._file_keys:
            count += 1
        if count == 0:
            raise FileError(f"The text encoder '{self.row.name}' has no layers in this file: the file is incomplete.")
        return count

    def _spelled(self, name: str) -> str:
        """A `transformers` name as the file spells it, without the prefix."""
        if not self._open_clip:
            return f"text_model.{name}"
        if name in _TOP:
            return _TOP[name]
        _, _, layer, *module, leaf = name.split(".")
        return f"transformer.resblocks.{layer}.{_BLOCK['.'.join(module)]}.{leaf}"

    def _read(self, name: str) -> Tensor:
        return self._tensors[self._key(name)].to(STORED)

    def _shape(self, name: str, dimensions: int) -> tuple[int, ...]:
        """A shape, from the header where the source has one: an embedding table is large."""
        key = self._key(self._spelled(name))
        shapes = getattr(self._tensors, "shapes", {})
        shape = tuple(shapes[key] if key in shapes else self._tensors[key].shape)
        if len(shape) != dimensions or 0 in shape:
            raise FileError(f"The text encoder '{self.row.name}' is damaged: '{key}' has the shape {shape}.")
        return shape

    def _key(self, name: str) -> str:
        if name not in self._file_keys:
            raise FileError(f"The text encoder '{self.row.name}' is incomplete: the file has no '{name}' for it.")
        return self._file_keys[name]
