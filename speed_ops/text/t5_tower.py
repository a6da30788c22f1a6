"""T5's encoder at work."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import nn

from .lazy_blocks import LazyBlocks, assign
from .t5_weights import T5Weights
from .tower import Built, Tower


class T5Tower(Tower):
    """T5-XXL, or a shrunken one. No attention mask: the models that read it were trained on padding rows, too."""

    def __init__(self, weights: T5Weights, clip_skip: int | None, device: torch.device) -> None:
        super().__init__(weights, clip_skip, device)
        self.weights = weights

    @property
    def rule(self) -> str:
        """What besides the weights decides the output."""
        return f"{self.row.name}:{self.blocks}:norm:{self.row.pad_token}:{self.row.length}"

    def _build(self) -> Built:
        from transformers import T5Config, T5EncoderModel

        weights = self.weights
        config = T5Config(
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
            model = T5EncoderModel(config).eval()
        assign(model, weights.top(), self._device, self.row.name, strict=False)
        model.set_input_embeddings(model.shared)  # one table, not two
        # The first block alone has a table of distances, and hands its values on: any of its kind can stand anywhere.
        layers = nn.ModuleList([deepcopy(model.encoder.block[0]) for _ in range(weights.layers)])
        blocks = LazyBlocks(layers, weights.block, self._device, self.row.name)
        return Built(model, blocks, model.encoder.final_layer_norm)

    def _put_together(self, built: Built, blocks: nn.ModuleList, norm: nn.Module) -> None:
        built.call.encoder.block, built.call.encoder.final_layer_norm = blocks, norm
