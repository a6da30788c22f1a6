"""One CLIP text encoder at work."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..errors import FileError
from .clip_tokenizer import END_TOKEN
from .clip_weights import ClipWeights
from .lazy_blocks import LazyBlocks, assign
from .tower import Built, Tower

HEAD_WIDTH = 64
"""Width of one attention head in every CLIP text encoder."""


class ClipTower(Tower):
    """CLIP-L, CLIP-H or CLIP-G."""

    def __init__(self, weights: ClipWeights, clip_skip: int | None, device: torch.device) -> None:
        super().__init__(weights, clip_skip, device)
        self.weights = weights

    @property
    def rule(self) -> str:
        """What besides the weights decides the output."""
        row = self.row
        return f"{row.name}:{self.blocks}:{'norm' if row.final_norm else 'raw'}:{row.pad_token}:{self._activation}"

    @property
    def _activation(self) -> str:
        return "quick_gelu" if self.row.name == "clip_l" else "gelu"

    @torch.no_grad()
    def pooled(self, ids: Tensor, ends: Tensor) -> Tensor:
        """`batch x pooled width`: the last state at the end token (`ends`), projected."""
        states = self._run(ids, self.weights.layers, True)
        at_end = states[torch.arange(len(ids)), ends.to(states.device)]
        projection = self.weights.projection()
        return at_end if projection is None else at_end @ projection.to(self._device, torch.float32).T

    def _build(self) -> Built:
        from transformers import CLIPTextConfig, CLIPTextModel

        weights = self.weights
        if weights.vocabulary <= END_TOKEN or weights.width % HEAD_WIDTH:
            raise FileError(
                f"The text encoder '{weights.row.name}' has {weights.vocabulary} tokens of width {weights.width}: "
                "this is not a CLIP text encoder."
            )
        config = CLIPTextConfig(
            vocab_size=weights.vocabulary,
            hidden_size=weights.width,
            intermediate_size=weights.inner_width,
            num_hidden_layers=weights.layers,
            num_attention_heads=weights.width // HEAD_WIDTH,
            max_position_embeddings=weights.positions,
            hidden_act=self._activation,
            eos_token_id=END_TOKEN,
        )
        with torch.device("meta"):
            model = CLIPTextModel(config).eval()
        core = _core(model)
        assign(core, weights.top(), self._device, weights.row.name, strict=False)
        core.embeddings.position_ids = torch.arange(weights.positions, device=self._device).expand(1, -1)
        blocks = LazyBlocks(core.encoder.layers, weights.block, self._device, weights.row.name)
        return Built(model, blocks, core.final_layer_norm)

    def _put_together(self, built: Built, blocks: nn.ModuleList, norm: nn.Module) -> None:
        core = _core(built.call)
        core.encoder.layers, core.final_layer_norm = blocks, norm


def _core(model: nn.Module) -> Any:
    return getattr(model, "text_model", model)  # transformers 5 drops the inner module
