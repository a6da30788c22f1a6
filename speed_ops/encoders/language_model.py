"""T5s and chat models with their tokenizers. A model reads only their rows, without an embedding of
the whole prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from ..files.checkpoint import Checkpoint
from ..models.architecture import FamilyEncoder
from .chat import ChatTextEncoder
from .encoder import TowerEncoder
from .t5 import T5TextEncoder
from .tokenizers import (
    PILE_IN_COMFYUI,
    LanguageTokenizer,
    piece_tokenizer,
    qwen_tokenizer,
    t5_tokenizer,
)
from .tower import Tensors

_IN_COMFYUI = {"pile_t5xl": PILE_IN_COMFYUI}
"""Where ComfyUI keeps a SentencePiece model that is not in the text encoder's file."""


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
    kind = ChatTextEncoder if row.causal else T5TextEncoder
    return kind(tensors, row, _tokenizer(row.name, tokenizer, holders), clip_skip, device)


def _tokenizer(name: str, path: Path | None, holders: Sequence[Checkpoint]) -> LanguageTokenizer:
    if name == "t5xxl":
        return t5_tokenizer(path, holders)
    if name.startswith("qwen"):
        return qwen_tokenizer(path, holders)
    return piece_tokenizer(path, holders, _IN_COMFYUI.get(name))
