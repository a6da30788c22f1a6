"""T5, UMT5 and Pile-T5 from a file's own weights: what Flux, Wan and AuraFlow read, and the second
half of SD3's prompt.

`T5Weights` finds the tensors, `T5Tower` runs them, `T5TextEncoder` turns prompts into rows.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn

from ..errors import FileError
from ..files.tensors import read_scaled
from ..models.architecture import FamilyEncoder
from ..text.tokens import Stream
from .encoder import TowerEncoder
from .tokenizers import LanguageTokenizer
from .tower import STORED, Built, EncoderWeights, LazyBlocks, Tensors, Tower, assign

_MATRICES = (
    *(f"layer.0.SelfAttention.{name}" for name in "qkvo"),
    *(f"layer.1.DenseReluDense.{name}" for name in ("wi_0", "wi_1", "wo")),
)
_NORMS = ("layer.0.layer_norm", "layer.1.layer_norm")
_DISTANCES = "layer.0.SelfAttention.relative_attention_bias.weight"
_FINAL_NORM = "encoder.final_layer_norm.weight"


class T5Weights(EncoderWeights):
    """Of version 1.1 (gated activations), under `transformers`' names."""

    def __init__(self, tensors: Tensors, row: FamilyEncoder) -> None:
        super().__init__(tensors, row)
        self.layers = self._count_layers("encoder.block.{}.layer.0.layer_norm.weight")
        self._table = (
            "shared.weight" if "shared.weight" in self._file_keys else "encoder.embed_tokens.weight"
        )
        self.vocabulary, self.width = self._shape(self._table, 2)
        self.distances, self.heads = self._shape(f"encoder.block.0.{_DISTANCES}", 2)
        self.attention_width, _ = self._shape("encoder.block.0.layer.0.SelfAttention.q.weight", 2)
        self.inner_width, _ = self._shape("encoder.block.0.layer.1.DenseReluDense.wi_0.weight", 2)
        if self.attention_width % self.heads:
            raise FileError(
                f"The text encoder '{row.name}' is damaged: its width is not a multiple of its"
                f" {self.heads} heads."
            )
        self.own_distances = f"encoder.block.1.{_DISTANCES}" in self._file_keys
        """Whether every block has a table of distances (UMT5), and not the first alone."""
        self._stored: torch.dtype | None = None

    def block(self, layer: int) -> dict[str, Tensor]:
        """One block's tensors, named relative to it."""
        start = f"encoder.block.{layer}."
        names = [f"{module}.weight" for module in (*_MATRICES, *_NORMS)]
        distances = layer if self.own_distances else 0
        return {name: self._read(start + name) for name in names} | {
            _DISTANCES: self._read(f"encoder.block.{distances}.{_DISTANCES}")
        }

    def top(self) -> dict[str, Tensor]:
        table = self._read(self._table)
        # the table of a plain fp8 file may hold NaN, which ComfyUI reads as zero
        if table.element_size() == 1:
            table = torch.nan_to_num(table.to(torch.float32)).to(STORED)
        return {"shared.weight": table, _FINAL_NORM: self._read(_FINAL_NORM)}

    def _read(self, name: str) -> Tensor:
        """As ComfyUI holds it: in the type of the final norm, but never wider than half precision.

        What is stored with a scale stays in float32, the scale multiplied in.
        """
        if self._stored is None:
            kind = self._tensors[self._key(_FINAL_NORM)].dtype
            self._stored = kind if kind.itemsize <= STORED.itemsize else STORED
        value, scaled = read_scaled(
            self._tensors.__getitem__, set(self._tensors.keys()), self._key(name)
        )
        return value if scaled else value.to(self._stored)


class T5Tower(Tower):
    """T5-XXL or smaller, UMT5 or Pile-T5."""

    def __init__(self, weights: T5Weights, clip_skip: int | None, device: torch.device) -> None:
        """See `Tower`."""
        super().__init__(weights, clip_skip, device)
        self.weights = weights

    @property
    def rule(self) -> str:
        row = self.row
        length = str(row.length) if row.padding == "informative" else row.padding
        return f"{row.name}:{self.blocks}:norm:{row.pad_token}:{length}"

    def _build(self) -> Built:
        import transformers

        weights = self.weights
        name = "UMT5" if weights.own_distances else "T5"
        config = getattr(transformers, f"{name}Config")(
            vocab_size=weights.vocabulary,
            d_model=weights.width,
            d_kv=weights.attention_width // weights.heads,
            d_ff=weights.inner_width,
            num_layers=1,
            num_heads=weights.heads,
            relative_attention_num_buckets=weights.distances,
            feed_forward_proj="gated-gelu",
        )
        with torch.device("meta"):
            model = getattr(transformers, f"{name}EncoderModel")(config).train(False)
        assign(model, weights.top(), self._device, self.row.name, strict=False)
        model.set_input_embeddings(model.shared)  # one table, not two
        # T5's first block alone has a table of distances, and hands its values on: any of its kind
        # can be anywhere.
        layers = nn.ModuleList([deepcopy(model.encoder.block[0]) for _ in range(weights.layers)])
        blocks = LazyBlocks(layers, weights.block, self._device, self.row.name)
        return Built(model, blocks, model.encoder.final_layer_norm)

    def _put_together(self, built: Built, blocks: nn.ModuleList, norm: nn.Module) -> None:
        built.call.encoder.block, built.call.encoder.final_layer_norm = blocks, norm


class T5TextEncoder(TowerEncoder):
    """A `TextEncoder` without a start token; every row reads the whole prompt, and padding where
    the model was trained on it.
    """

    def __init__(
        self,
        tensors: Tensors,
        row: FamilyEncoder,
        tokenizer: LanguageTokenizer,
        clip_skip: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        """
        Args:
            tensors: Of the file.
            row: The family's T5 from the registry.
            tokenizer: The T5's own.
            clip_skip: ComfyUI's also reaches T5.
            device: Where the encoder runs.
        """
        weights = T5Weights(tensors, row)
        if tokenizer.size > weights.vocabulary:
            raise FileError(
                f"The tokenizer has {tokenizer.size} tokens, the text encoder '{row.name}'"
                f" {weights.vocabulary}: they do not belong together."
            )
        tower = T5Tower(weights, clip_skip, torch.device(device))
        stream = Stream(
            tokenizer.token_ids, row.length, before=0, causal=False, padding=row.padding
        )
        super().__init__([tower], tokenizer, stream, ([], tokenizer.end))
