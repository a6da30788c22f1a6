"""One text encoder at work: `transformers`' model over tensors that stay in the file until they are needed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import SettingsError
from .encoder_weights import EncoderWeights
from .lazy_blocks import LazyBlocks, let_go


@dataclass
class Built:
    """A model without its blocks' weights."""

    call: Any
    """Token ids in, hidden states out."""
    blocks: LazyBlocks
    final_norm: nn.Module


class Tower(ABC):
    """Computes hidden states of one encoder in float32. A subclass knows how its model is made and put together."""

    def __init__(self, weights: EncoderWeights, clip_skip: int | None, device: torch.device) -> None:
        self.row = weights.row
        self.hidden = weights.row.hidden if clip_skip is None else clip_skip
        self.width = weights.width
        self.blocks = _blocks_needed(weights, self.hidden, clip_skip)
        self.tick: Callable[[], None] = lambda: None
        """Called before every block: the place to report progress or to stop."""
        self._weights = weights
        self._device = device
        self._built: Built | None = None

    @property
    @abstractmethod
    def rule(self) -> str:
        """What besides the weights decides the output."""

    @abstractmethod
    def _build(self) -> Built:
        """The model, its tables filled, its blocks not yet."""

    @abstractmethod
    def _put_together(self, built: Built, blocks: nn.ModuleList, norm: nn.Module) -> None:
        """Makes these blocks and this final norm the model's."""

    def digest(self) -> str:
        """Hash of the weights that are used."""
        return self._weights.digest(self.blocks)

    def close(self) -> None:
        """Lets go of the weights in memory at once; the next call reads them again."""
        if self._built is not None:
            for module in (self._built.call, self._built.blocks.layers, self._built.final_norm):
                let_go(module)
        self._built = None

    @torch.no_grad()
    def states(self, ids: Tensor) -> Tensor:
        """`batch x length` token ids to `batch x length x d`: what the diffusion model receives."""
        return self._run(ids, self.blocks, self.row.final_norm)

    def _run(self, ids: Tensor, blocks: int, norm: bool) -> Tensor:
        if self._built is None:
            self._built = self._build()
        built = self._built
        built.blocks.tick = self.tick
        self._put_together(built, built.blocks.first(blocks), built.final_norm if norm else nn.Identity())
        states: Tensor = built.call(input_ids=ids.to(self._device)).last_hidden_state
        return states


def _blocks_needed(weights: EncoderWeights, hidden: int, clip_skip: int | None) -> int:
    complete, name = weights.complete_layers, weights.row.name
    if not -complete <= hidden <= -1:
        raise SettingsError(
            f"The clip skip is {hidden}, but '{name}' has {complete} layers: choose from -1 (the last layer) "
            f"to -{complete}."
        )
    needed = complete + 1 + hidden
    if needed > weights.layers:
        raise SettingsError(
            f"The clip skip {clip_skip} needs layer {needed} of '{name}', but the file holds "
            f"{weights.layers}: choose {weights.layers - complete - 1} or lower."
        )
    return needed
