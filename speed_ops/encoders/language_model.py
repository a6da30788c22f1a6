"""T5 and Qwen3 with their tokenizers. A model reads only their rows, without an embedding of the
whole prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from ..files.checkpoint import Checkpoint
from ..models.architecture import FamilyEncoder
from .encoder import TowerEncoder
from .qwen import QwenTextEncoder
from .t5 import T5TextEncoder
from .tokenizers import qwen_tokenizer, t5_tokenizer
from .tower import Tensors


def language_model_encoder(
    tensors: Tensors,
    row: FamilyEncoder,
    tokenizer: Path | None,
    holders: Sequence[Checkpoint],
    clip_skip: int | None,
    device: torch.device,
) -> TowerEncoder:
    """The encoder of a family's row.

    Args:
        tensors: Of the checkpoint or folder.
        row: The family's encoder from the registry.
        tokenizer: Where the user keeps the tokenizer; None: with the model, or in a ComfyUI.
        holders: The files of the model and its encoders.
        clip_skip: As in ComfyUI; None is what the family was trained with.
        device: Where the encoder runs.
    """
    if row.causal:
        words = qwen_tokenizer(tokenizer, holders)
        return QwenTextEncoder(tensors, row, words, clip_skip, device)
    pieces = t5_tokenizer(tokenizer, holders)
    return T5TextEncoder(tensors, row, pieces, clip_skip, device)
