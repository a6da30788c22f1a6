"""Causal language models from a file's own weights: Qwen2.5, Qwen3 and Gemma 2.

`ChatWeights` finds the tensors, `ChatTower` runs them, `ChatTextEncoder` turns prompts into rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import FileError, SettingsError
from ..files.tensors import read_scaled
from ..models.architecture import FamilyEncoder
from ..text.tokens import Stream
from .encoder import TowerEncoder
from .tokenizers import LanguageTokenizer
from .tower import STORED, Built, EncoderWeights, LazyBlocks, Tensors, Tower, assign

_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
_MODULES = (
    *(f"self_attn.{name}" for name in _PROJECTIONS),
    *(f"mlp.{name}" for name in ("gate_proj", "up_proj", "down_proj")),
    *("input_layernorm", "post_attention_layernorm"),
)


@dataclass(frozen=True)
class _Design:
    """What distinguishes one kind of language model from the others."""

    name: str
    """As `transformers` begins the names of its classes."""
    modules: tuple[str, ...] = ()
    """What each block has in addition to `_MODULES`."""
    biases: tuple[str, ...] = ()
    """Its modules with a bias."""
    head_width: int = 0
    """Width of an attention head; 0: that of the norm of the queries."""
    rope_theta: float = 1_000_000.0
    """Base of the positions' frequencies, which no file has."""
    caps_attention: bool = False
    """Whether `transformers` caps attention. ComfyUI does not, and neither does this tower."""


_DESIGNS = {
    "qwen25": _Design(
        "Qwen2", biases=tuple(f"self_attn.{name}" for name in _PROJECTIONS[:3]), head_width=128
    ),
    "qwen3": _Design("Qwen3", ("self_attn.q_norm", "self_attn.k_norm")),
    "gemma2": _Design(
        "Gemma2",
        ("pre_feedforward_layernorm", "post_feedforward_layernorm"),
        head_width=256,
        rope_theta=10_000.0,
        caps_attention=True,
    ),
}
"""{how an encoder's name begins: its design}."""


class ChatWeights(EncoderWeights):
    """Under `transformers`' names."""

    def __init__(self, tensors: Tensors, row: FamilyEncoder) -> None:
        super().__init__(tensors, row)
        self.design = _DESIGNS[row.name.partition("_")[0]]
        self.layers = self._count_layers("model.layers.{}.input_layernorm.weight")
        self.vocabulary, self.width = self._shape("model.embed_tokens.weight", 2)
        first = "model.layers.0."
        self.head_width = self.design.head_width
        if not self.head_width:
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
        names = [f"{module}.weight" for module in (*_MODULES, *self.design.modules)]
        names += [f"{module}.bias" for module in self.design.biases]
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


class ChatTower(Tower):
    """Qwen2.5, Qwen3 or Gemma 2 of any size."""

    def __init__(self, weights: ChatWeights, clip_skip: int | None, device: torch.device) -> None:
        if clip_skip is not None and weights.row.states > 1:
            raise SettingsError(
                f"The model reads {weights.row.states} states of '{weights.row.name}', so there is"
                " no clip skip to choose. Leave it out."
            )
        super().__init__(weights, clip_skip, device)
        self.weights = weights

    @property
    def rule(self) -> str:
        row, norm = self.row, "norm" if self.row.final_norm else "raw"
        rule = f"{row.name}:{self.blocks}:{norm}:{row.template}"
        if row.states > 1 or row.instruction:
            rule += f":{row.states}:{row.padding}:{row.instruction}"
        return rule

    def _build(self) -> Built:
        import transformers

        weights, design = self.weights, self.weights.design
        options: dict[str, Any] = {"rope_theta": design.rope_theta}
        if design.caps_attention:
            options |= {
                "attn_logit_softcapping": None,
                "query_pre_attn_scalar": weights.head_width,
            }
        config = getattr(transformers, f"{design.name}Config")(
            vocab_size=weights.vocabulary,
            hidden_size=weights.width,
            intermediate_size=weights.inner_width,
            num_hidden_layers=weights.layers,
            num_attention_heads=weights.heads,
            num_key_value_heads=weights.key_heads,
            head_dim=weights.head_width,
            use_cache=False,
            **options,
        )
        with torch.device("meta"):
            model = getattr(transformers, f"{design.name}Model")(config).train(False)
        assign(model, weights.top(), self._device, self.row.name, strict=False)
        # What is computed from the configuration is not in the file.
        model.rotary_emb = type(model.rotary_emb)(config=config).to(self._device)
        if hasattr(model.embed_tokens, "embed_scale"):
            model.embed_tokens.embed_scale = torch.tensor(weights.width**0.5, device=self._device)
        blocks = LazyBlocks(model.layers, weights.block, self._device, self.row.name)
        return Built(model, blocks, model.norm)

    def _put_together(self, built: Built, blocks: nn.ModuleList, norm: nn.Module) -> None:
        built.call.layers, built.call.norm = blocks, norm


class ChatTextEncoder(TowerEncoder):
    """A `TextEncoder` that puts the family's chat template around a text. It is causal."""

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
            tensors: Of the checkpoint or folder.
            row: The family's encoder from the registry.
            tokenizer: The model's own.
            clip_skip: As in ComfyUI; None is what the family was trained with.
            device: Where the encoder runs.
        """
        weights = ChatWeights(tensors, replace(row, pad_token=tokenizer.pad))
        if tokenizer.size > weights.vocabulary:
            raise FileError(
                f"The tokenizer has {tokenizer.size} tokens, the text encoder '{row.name}'"
                f" {weights.vocabulary}: they do not belong together."
            )
        unread, opening, closing = map(tokenizer.template_ids, (row.instruction, *row.template))
        opening = [*tokenizer.start, *opening]
        stream = Stream(
            *(tokenizer.token_ids, row.length),
            before=len(opening),
            padding=row.padding,
            after=len(closing),
        )
        tower = ChatTower(weights, clip_skip, torch.device(device))
        super().__init__([tower], tokenizer, stream, ([*unread, *opening], closing))
