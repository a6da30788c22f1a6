"""T5 text encoding from a file's own weights: what Flux reads, and the second half of SD3's prompt."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..architectures import TextEncoder as EncoderRow
from ..errors import FileError
from .encoder_weights import Tensors
from .streams import Stream
from .t5_tokenizer import END_TOKEN, T5Tokenizer
from .t5_tower import T5Tower
from .t5_weights import T5Weights
from .tower_encoder import TowerEncoder


class T5TextEncoder(TowerEncoder):
    """A `TextEncoder` without a start token in which every row reads the whole prompt, padding included."""

    def __init__(
        self,
        tensors: Tensors,
        row: EncoderRow,
        tokenizer: T5Tokenizer,
        clip_skip: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        """`row`: the family's T5 from the registry. `clip_skip`: ComfyUI's reaches T5, too."""
        weights = T5Weights(tensors, row)
        if tokenizer.size > weights.vocabulary:
            raise FileError(
                f"The tokenizer has {tokenizer.size} tokens, the text encoder '{row.name}' {weights.vocabulary}: "
                "they do not belong together."
            )
        tower = T5Tower(weights, clip_skip, torch.device(device))
        stream = Stream(tokenizer.token_ids, row.length, start_token=False, causal=False)
        super().__init__([tower], tokenizer, stream)

    def _tokens(self, text: Sequence[int], pad: int) -> list[int]:
        return [*text, END_TOKEN, *[pad] * self.context_length]
