"""A CLIP text encoder inside a file, whatever its spelling."""

from __future__ import annotations

from torch import Tensor

from ..architectures import TextEncoder as EncoderRow
from .encoder_weights import STORED, EncoderWeights, Tensors

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


class ClipWeights(EncoderWeights):
    """One encoder's tensors, under the names that they have in `transformers`' text model."""

    def __init__(self, tensors: Tensors, row: EncoderRow) -> None:
        super().__init__(tensors, row)
        self._open_clip = self.naming == "open_clip"
        self.layers = self._count_layers(
            "transformer.resblocks.{}.ln_1.weight"
            if self._open_clip
            else "text_model.encoder.layers.{}.layer_norm1.weight"
        )
        self.vocabulary, self.width = self._shape(self._spelled("embeddings.token_embedding.weight"), 2)
        self.positions, _ = self._shape(self._spelled("embeddings.position_embedding.weight"), 2)
        (self.inner_width,) = self._shape(self._spelled("encoder.layers.0.mlp.fc1.bias"), 1)

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
