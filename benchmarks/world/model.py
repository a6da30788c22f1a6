"""The trained world in one process: prompt rows, pictures and the judge, without ComfyUI.

The matrix of methods needs thousands of pictures, and starting a sampler node for each batch would
only add cost: this is the same U-Net with the same Euler steps, in its narrow form. `confirm`
compares some runs with the stock KSampler. Where nothing was trained, it is the model in the box.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from speed_erase.speed_ops.demo.packed_model import (
    AUTOENCODER,
    FILE,
    NARROW,
    TEXT,
    UNET,
    token_table,
    unpacked,
)
from speed_erase.speed_ops.demo.sampler import sample
from speed_erase.speed_ops.demo.unet import UNet

from .autoencoder import new_autoencoder
from .export import BOX
from .judge import Judge
from .prompts import training_prompts
from .storage import load_tensors, save_tensors
from .text_encoder import LENGTH, WIDTH, TextEncoder, tokens
from .world import LATENT

STEPS, GUIDANCE = 12, 3.0
TO_V = "attn2.to_v.weight"


def trained_parts(folder: Path) -> dict[str, Tensor]:
    """The folder's box if it has one, else the one that comes with the package."""
    own = folder / BOX
    return unpacked(load_tensors(own if own.exists() else FILE))


def part(parts: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors below a prefix, as the checkpoint rounds them."""
    found = {
        key.removeprefix(prefix): value for key, value in parts.items() if key.startswith(prefix)
    }
    return {key: value.half().float() for key, value in found.items()}


class WorldText:
    """Prompts to rows; each text is encoded once and kept, also on disk (half precision, as in
    training).
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._encoder: TextEncoder | None = None
        self._known: dict[str, Tensor] = {}
        trained = folder / "prompt_rows.safetensors"
        self._trained = (
            {"", *(prompt.text for prompt in training_prompts())} if trained.exists() else set()
        )
        if self._trained:
            texts = ["", *(prompt.text for prompt in training_prompts())]
            self._known.update(zip(texts, load_tensors(trained)["rows"], strict=True))
        if self._extra.exists():
            self._known.update(load_tensors(self._extra))
        self._stored = len(self._known)

    @property
    def _extra(self) -> Path:
        return self._folder / "other_rows.safetensors"

    def rows(self, texts: Sequence[str]) -> Tensor:
        """All rows of each prompt, (n, 77, 768) in single precision."""
        missing = [text for text in dict.fromkeys(texts) if text not in self._known]
        if missing:
            self._known.update(zip(missing, self._load().encode(missing).half(), strict=True))
        return torch.stack([self._known[text] for text in texts]).float()

    def token_ids(self, text: str) -> list[int]:
        """Text tokens without start and end."""
        return tokens(text)

    def save(self) -> None:
        """Keeps what was encoded beyond the training prompts for the next process."""
        if len(self._known) > self._stored:
            others = {text: rows for text, rows in self._known.items() if text not in self._trained}
            save_tensors(self._extra, {text or "": rows for text, rows in others.items()})
            self._stored = len(self._known)

    def _load(self) -> TextEncoder:
        if self._encoder is None:
            self._encoder = load_text_encoder(self._folder)
        return self._encoder


def load_text_encoder(folder: Path) -> TextEncoder:
    """The folder's encoder, or the one in the box."""
    encoder = TextEncoder()
    state = {f"text_model.{key}": value for key, value in part(trained_parts(folder), TEXT).items()}
    encoder.load_state_dict(
        {**state, "text_model.embeddings.token_embedding.weight": token_table()}
    )
    return encoder.requires_grad_(False).eval()


class World:
    """Text, U-Net, decoder and judge of one folder."""

    def __init__(self, folder: Path, text: WorldText | None = None) -> None:
        self.folder = folder
        self.text = text or WorldText(folder)
        parts = trained_parts(folder)
        self.unet, self.autoencoder = UNet(NARROW), new_autoencoder()
        self.unet.load_state_dict(part(parts, UNET))
        self.unet.requires_grad_(False).eval().to(memory_format=torch.channels_last)
        self.autoencoder.load_state_dict(part(parts, AUTOENCODER))
        self.autoencoder.requires_grad_(False).eval()
        self.judge = Judge()
        self._original = self.value_weights()
        self._empty = self.text.rows([""])[0]

    def value_weights(self) -> dict[str, Tensor]:
        """Copies of the weights an erasure edits: {key: (160, 768)}."""
        return {
            key: value.clone()
            for key, value in self.unet.state_dict().items()
            if key.endswith(TO_V)
        }

    @property
    def original(self) -> dict[str, Tensor]:
        """The untouched value weights."""
        return self._original

    def use(self, weights: Mapping[str, Tensor] | None) -> UNet:
        """The U-Net with these value weights; None: the untouched ones."""
        chosen = self._original if weights is None else weights
        self.unet.load_state_dict(
            {key: value.float() for key, value in chosen.items()}, strict=False
        )
        return self.unet

    def draw(
        self, texts: Sequence[str], seed: int, weights: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        """One picture a prompt (n, 3, 128, 128); the noise depends on seed and place alone, so
        methods are paired.
        """
        return self.draw_rows(self.text.rows(texts), seed, weights)

    def draw_rows(
        self, rows: Tensor, seed: int, weights: Mapping[str, Tensor] | None = None, batch: int = 16
    ) -> Tensor:
        """The same from rows (n, 77, 768)."""
        assert rows.shape[1:] == (LENGTH, WIDTH)
        noise = torch.randn(
            len(rows), 4, LATENT, LATENT, generator=torch.Generator().manual_seed(seed)
        )
        unet = self.use(weights)
        drawn = []
        for some, start in zip(rows.split(batch), noise.split(batch), strict=True):
            latents = sample(unet, some, self._empty, start, STEPS, GUIDANCE)
            drawn.append(self.decode(latents))
        self.use(None)
        return torch.cat(drawn)

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Latents (n, 4, 16, 16) to pictures (n, 3, 128, 128) in [-1, 1]."""
        return self.autoencoder.decode(latents).clamp(0, 1) * 2 - 1

    @torch.no_grad()
    def encode(self, pictures: Tensor) -> Tensor:
        """Pictures (n, 3, 128, 128) in [-1, 1] to latents (n, 4, 16, 16)."""
        return self.autoencoder.encode(pictures / 2 + 0.5)
