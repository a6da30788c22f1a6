"""T5's encoder inside a file."""

from __future__ import annotations

import torch
from torch import Tensor

from ..architectures import TextEncoder as EncoderRow
from ..errors import FileError
from ..files.fp8_scale import read_scaled
from .encoder_weights import STORED, EncoderWeights, Tensors

_MATRICES = (
    *(f"layer.0.SelfAttention.{name}" for name in "qkvo"),
    *(f"layer.1.DenseReluDense.{name}" for name in ("wi_0", "wi_1", "wo")),
)
_NORMS = ("layer.0.layer_norm", "layer.1.layer_norm")
_DISTANCES = "layer.0.SelfAttention.relative_attention_bias.weight"
_FINAL_NORM = "encoder.final_layer_norm.weight"


class T5Weights(EncoderWeights):
    """Of version 1.1 (gated activations), under `transformers`' names."""

    def __init__(self, tensors: Tensors, row: EncoderRow) -> None:
        super().__init__(tensors, row)
        self.layers = self._count_layers("encoder.block.{}.layer.0.layer_norm.weight")
        self._table = "shared.weight" if "shared.weight" in self._file_keys else "encoder.embed_tokens.weight"
        self.vocabulary, self.width = self._shape(self._table, 2)
        self.distances, self.heads = self._shape(f"encoder.block.0.{_DISTANCES}", 2)
        self.attention_width, _ = self._shape("encoder.block.0.layer.0.SelfAttention.q.weight", 2)
        self.inner_width, _ = self._shape("encoder.block.0.layer.1.DenseReluDense.wi_0.weight", 2)
        if self.attention_width % self.heads:
            raise FileError(f"The text encoder '{row.name}' is damaged: {self.heads} heads do not divide its width.")
        self._stored: torch.dtype | None = None

    def block(self, layer: int) -> dict[str, Tensor]:
        """One block's tensors, named relative to it. The table of distances is the first block's, for all of them."""
        start = f"encoder.block.{layer}."
        names = [f"{module}.weight" for module in (*_MATRICES, *_NORMS)]
        return {name: self._read(start + name) for name in names} | {
            _DISTANCES: self._read(f"encoder.block.0.{_DISTANCES}")
        }

    def top(self) -> dict[str, Tensor]:
        """The embedding table and the final norm."""
        table = self._read(self._table)
        if table.element_size() == 1:  # the table of a plain fp8 file may hold NaN, which ComfyUI reads as zero
            table = torch.nan_to_num(table.to(torch.float32)).to(STORED)
        return {"shared.weight": table, _FINAL_NORM: self._read(_FINAL_NORM)}

    def _read(self, name: str) -> Tensor:
        """As ComfyUI holds it: in the type of the final norm, but never wider than half precision.

        What is stored with a scale stays in float32, the scale multiplied in.
        """
        if self._stored is None:
            kind = self._tensors[self._key(_FINAL_NORM)].dtype
            self._stored = kind if kind.itemsize <= STORED.itemsize else STORED
        value, scaled = read_scaled(self._tensors.__getitem__, set(self._tensors.keys()), self._key(name))
        return value if scaled else value.to(self._stored)
