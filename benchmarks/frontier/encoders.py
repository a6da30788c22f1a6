"""The text encoders of the comparison, each as the engine's own `TextEncoder`.

Those that cannot be had everywhere are looked for and left out where they are not found: mpnet's
folder (`--mpnet`, or `SPEED_MPNET`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from speed_erase.speed_ops.checkpoints.source import ModelSource, TextSetup
from speed_erase.speed_ops.encoders.cache import CachedEncoder
from speed_erase.speed_ops.progress import Progress
from speed_erase.speed_ops.text.tokens import Stream

from ..world.model import load_text_encoder
from ..world.storage import default_folder
from ..world.text_encoder import LENGTH, WIDTH, tokens
from .random_model import write_random_checkpoint

CLIP_SIZE = 28.0
"""Root mean square length of CLIP-L's rows. All others are scaled to it: published thresholds mean
that size.
"""
FULL_DEPTH = 12


class Plain:
    """A `TextEncoder` of the engine around a function from prompts to all their rows."""

    def __init__(
        self, name: str, rows: Callable[[Sequence[str]], Sequence[Tensor]], stream: Stream
    ) -> None:
        self.fingerprint, self.width, self.context_length, self.streams = (
            name,
            WIDTH,
            stream.length,
            (stream,),
        )
        self._rows = rows
        self._scale = 1.0
        sample = torch.cat(
            [rows[1:] for rows in self._rows(["a painting of a harbour", "two dogs in the snow"])]
        )
        self._scale = CLIP_SIZE / float(sample.square().sum(dim=1).mean().sqrt())

    def encode(
        self, prompts: Sequence[str], lengths: Sequence[int], progress: Progress | None = None
    ) -> list[Tensor]:
        out: list[Tensor] = []
        for start in range(0, len(prompts), 32):
            out += [self._scale * rows for rows in self._rows(prompts[start : start + 32])]
        return [rows[:length] for rows, length in zip(out, lengths, strict=True)]

    def close(self) -> None:
        """Nothing to give back."""


def living(folder: Path | None = None) -> Plain:
    """The living model's encoder: CLIP-L's shape, three layers trained on a small vocabulary; the
    one in the box where none was trained here."""
    encoder = load_text_encoder(folder or default_folder())
    return Plain("living", lambda texts: list(encoder.encode(texts)), Stream(tokens, LENGTH))


def random_checkpoint(folder: Path, start: str | None = None, *, channels: int = 32) -> Path:
    """CLIP-L of full size with random weights, or with those of the `start` of its training, in a
    checkpoint that the command line can open. ComfyUI knows it only by the U-Net's full 320
    channels."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{start or 'random'}-clip-l-{channels}.safetensors"
    if not path.exists():
        write_random_checkpoint(path, channels=channels, text_layers=FULL_DEPTH, start=start)
    return path


def random_clip(folder: Path) -> CachedEncoder:
    """The random one's text encoder."""
    return TextSetup(cache=None).encoder(ModelSource.open(random_checkpoint(folder)))


def mpnet(folder: Path | None = None) -> Plain | None:
    """all-mpnet-base-v2: a real encoder, trained on web text, bidirectional; harsher than CLIP."""
    named = folder or os.environ.get("SPEED_MPNET")
    if not named or not (Path(named) / "model.safetensors").exists():
        return None
    from transformers import AutoModel, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(named)
    model: Any = AutoModel.from_pretrained(named).eval()
    length = 40

    @torch.no_grad()
    def rows(texts: Sequence[str]) -> list[Tensor]:
        batch = tokenizer(
            list(texts), return_tensors="pt", padding=True, truncation=True, max_length=length
        )
        states, counts = (
            model(**batch).last_hidden_state,
            batch["attention_mask"].sum(dim=1).tolist(),
        )
        # It has no padding rows of its own: the end token's row stands for them.
        return [
            torch.cat([state[:n], state[n - 1 : n].expand(length - n, -1)])
            for state, n in zip(states, counts, strict=True)
        ]

    def ids(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    return Plain("mpnet", rows, Stream(ids, length, causal=False))


def found(data: Path, mpnet_folder: Path | None) -> dict[str, Any]:
    """Every encoder that is here, by name."""
    every = {
        "random CLIP-L": random_clip(data),
        "living model": living(),
        "mpnet": mpnet(mpnet_folder),
    }
    return {name: encoder for name, encoder in every.items() if encoder is not None}
