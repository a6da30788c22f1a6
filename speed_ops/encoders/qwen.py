"""Qwen3 from a file's own weights: what Z-Image reads.

`QwenWeights` finds the tensors, `QwenTower` runs them, `QwenTextEncoder` turns prompts into rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..errors import FileError
from ..files.tensors import read_scaled
from ..models.architecture import FamilyEncoder
from ..text.tokens import Stream
from .encoder import TowerEncoder
from .tokenizers import QwenTokenizer
from .tower import STORED, Built, EncoderWeights, LazyBlocks, Tensors, Tower, assign

_MODULES = (
    *(f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")),
    *(f"mlp.{name}" for name in ("gate_proj", "up_proj", "down_proj")),
    *("input_layernorm", "post_attention_layernorm"),
)
_ROTATION: dict[str, Any] = {"rope_theta": 1_000_000.0}
"""Base of the positions' frequencies in every Qwen3."""


class QwenWeights(EncoderWeights):
    """Under `transformers`' names."""

    def __init__(self, tensors: Tensors, row: FamilyEncoder) -> None:
        super().__init__(tensors, row)
        self.layers = self._count_layers("model.layers.{}.input_layernorm.weight")
        self.vocabulary, self.width = self._shape("model.embed_tokens.weight", 2)
        first = "model.layers.0."
        (self.head_width,) = self._shape(f"{first}self_attn.q_norm.weight", 1)
        queries, _ = self._shape(f"{first}self_attn.q_proj.weight", 2)
        keys, _ = self._shape(f"{first}self_attn.k_proj.weight", 2)
        self.inner_width, _ = self._shape(f"{first}mlp.gate_proj.weight", 2)
        if queries % self.head_width or keys % self.head_width:
            raise FileError(
                f"The text encoder '{row.name}' is damaged: its width is not a multiple of its"
                f" heads' width, {self.head_width}."
            )
        self.heads, self.key_heads = queries // self.head_width, keys // self.head_width

    def block(self, layer: int) -> dict[str, Tensor]:
        names = [f"{module}.weight" for module in _MODULES]
        return {name: self._read(f"model.layers.{layer}.{name}") for name in names}

    def top(self) -> dict[str, Tensor]:
        names = ("embed_tokens.weight", "norm.weight")
        return {name: self._read(f"model.{name}") for name in names}

    def _read(self, name: str) -> Tensor:
        """As ComfyUI holds it: as it is stored, but never wider than half precision."""
        value, scaled = read_scaled(
            self._tensors.__getitem__, set(self._tensors.keys()), self._key(name)
        )
        return value if scaled or value.element_size() <= STORED.itemsize else value.to(STORED)


class QwenTower(Tower):
    """Qwen3 of any size."""

    def __init__(self, weights: QwenWeights, clip_skip: int | None, device: torch.device) -> None:
        super().__init__(weights, clip_skip, device)
        self.weights = weights

    @property
    def rule(self) -> str:
        norm = "norm" if self.row.final_norm else "raw"
        return f"{self.row.name}:{self.blocks}:{norm}:{self.row.template}"

    def _build(self) -> Built:
        from transformers import Qwen3Config, Qwen3Model

        weights = self.weights
        config = Qwen3Config(
            vocab_size=weights.vocabulary,
            hidden_size=weights.width,
            intermediate_size=weights.inner_width,
            num_hidden_layers=weights.layers,
            num_attention_heads=weights.heads,
            num_key_value_heads=weights.key_heads,
            head_dim=weights.head_width,
            use_cache=False,
            **_ROTATION,
        )
        with torch.device("meta"):
            model = Qwen3Model(config).eval()
        assign(model, weights.top(), self._device, self.row.name, strict=False)
        # Its frequencies are not in the file.
        model.rotary_emb = type(model.rotary_emb)(config=config).to(self._device)
        blocks = LazyBlocks(model.layers, weights.block, self._device, self.row.name)
        return Built(model, blocks, model.norm)

    def _put_together(self, built: Built, blocks: nn.ModuleList, norm: nn.Module) -> None:
        built.call.layers, built.call.norm = blocks, norm


class QwenTextEncoder(TowerEncoder):
    """A `TextEncoder` that puts the family's chat template around a text. Qwen is causal."""

    def __init__(
        self,
        tensors: Tensors,
        row: FamilyEncoder,
        tokenizer: QwenTokenizer,
        clip_skip: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        """
        Args:
            tensors: Of the checkpoint or folder.
            row: The family's encoder from the registry.
            tokenizer: Qwen's.
            clip_skip: As in ComfyUI; None is what the family was trained with.
            device: Where the encoder runs.
        """
        weights = QwenWeights(tensors, row)
        if tokenizer.size > weights.vocabulary:
            raise FileError(
                f"The tokenizer has {tokenizer.size} tokens, the text encoder '{row.name}'"
                f" {weights.vocabulary}: they do not belong together."
            )
        before, after = (tokenizer.template_ids(part) for part in row.template)
        stream = Stream(
            *(tokenizer.token_ids, row.length),
            before=len(before),
            padding="none",
            after=len(after),
        )
        tower = QwenTower(weights, clip_skip, torch.device(device))
        super().__init__([tower], tokenizer, stream, (before, after))
