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
    """One encoder's tensors. Names are relative to `transformers`' text model: `encoder.layers.0.mlp.fc1.weight`."""

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
        token_table = self["embeddings.token_embedding.weight"]
        self.vocabulary, self.width = token_table.shape if token_table.ndim == 2 else (0, 0)
        self.positions = len(self["embeddings.position_embedding.weight"])
        self.inner_width = len(self["encoder.layers.0.mlp.fc1.bias"])

    @property
    def complete_layers(self) -> int:
        """Blocks of the whole encoder, from which hidden layers are counted.

        A diffusers folder may leave out the blocks after the one the family uses; a shrunken encoder is complete.
        """
        return self.row.layers if self.layers == self.row.blocks_used else self.layers

    def __getitem__(self, name: str) -> Tensor:
        """A tensor by its `transformers` name."""
        if not self._open_clip:
            return self._read(f"text_model.{name}")
        if name in _TOP:
            return self._read(_TOP[name])
        layer, module, leaf = _split(name)
        block = f"transformer.resblocks.{layer}"
        if module in _ATTENTION_INPUTS:
            stacked = self._read(f"{block}.attn.in_proj_{leaf}")
            return stacked.chunk(3)[_ATTENTION_INPUTS.index(module)]
        return self._read(f"{block}.{_BLOCK[module]}.{leaf}")

    def block(self, layer: int) -> dict[str, Tensor]:
        """One block's tensors, named relative to the block."""
        modules = (*_BLOCK, *_ATTENTION_INPUTS)
        names = [f"{module}.{leaf}" for module in modules for leaf in ("weight", "bias")]
        return {name: self[f"encoder.layers.{layer}.{name}"] for name in names}

    def top(self) -> dict[str, Tensor]:
        """What stands outside the blocks: embedding tables and the final norm."""
        return {name: self[name] for name in _TOP}

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
            for name, tensor in self.block(layer).items():
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

    def _read(self, name: str) -> Tensor:
        if name not in self._file_keys:
            raise FileError(f"The text encoder '{self.row.name}' is incomplete: the file has no '{name}' for it.")
        return self._tensors[self._file_keys[name]].to(STORED)


def _split(name: str) -> tuple[str, str, str]:
    """`encoder.layers.3.mlp.fc1.bias` to (`3`, `mlp.fc1`, `bias`)."""
    _, _, layer, *module, leaf = name.split(".")
    return layer, ".".join(module), leaf
