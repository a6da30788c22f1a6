"""CLIP text encoding from a checkpoint's own weights: one encoder, or two side by side (SDXL)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..architectures import TextEncoder as EncoderRow
from ..errors import FileError
from .clip_tokenizer import END_TOKEN, START_TOKEN, ClipTokenizer
from .clip_tower import ClipTower
from .clip_weights import ClipWeights
from .encoder_weights import Tensors
from .streams import Stream
from .tower_encoder import TowerEncoder


class ClipTextEncoder(TowerEncoder):
    """A `TextEncoder` over the tensors of a checkpoint or diffusers folder. CLIP is causal."""

    def __init__(
        self,
        tensors: Tensors,
        rows: Sequence[EncoderRow],
        tokenizer: ClipTokenizer,
        clip_skip: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        """`rows`: the family's encoders from the registry, in column order. `clip_skip`: as in ComfyUI, -1 is the
        last layer, -2 the one before; None is what the family was trained with."""
        self._clips = tuple(ClipTower(ClipWeights(tensors, row), clip_skip, torch.device(device)) for row in rows)
        lengths = {tower.weights.positions for tower in self._clips}
        if len(lengths) != 1:
            raise FileError(f"The text encoders take prompts of different lengths {sorted(lengths)}: not one model.")
        super().__init__(self._clips, tokenizer, Stream(tokenizer.token_ids, lengths.pop()))

    def pooled(self, prompts: Sequence[str]) -> Tensor:
        """`prompts x pooled width`: the last encoder's pooled embedding, which SDXL's second text path reads."""
        texts = [self._checked_ids(prompt) for prompt in prompts]
        tower = self._clips[-1]
        tower.tick = lambda: None
        ends = torch.tensor([len(text) + 1 for text in texts], dtype=torch.long)
        longest = int(ends.max()) + 1 if len(texts) else 0
        return tower.pooled(self._padded(texts, tower, longest), ends).cpu()

    def _tokens(self, text: Sequence[int], pad: int) -> list[int]:
        return [START_TOKEN, *text, END_TOKEN, *[pad] * self.context_length]
