"""Images from models of the demo's layout, in plain torch: what ComfyUI makes of them, without
ComfyUI.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..checkpoints.source import ModelSource
from ..checkpoints.text_setup import TextSetup
from ..files.checkpoint import Checkpoint
from .autoencoder import CELL, SD1_SCALE, Autoencoder
from .packed_model import AUTOENCODER, NARROW, UNET, fold_channels, repeat_channels, unet_shapes
from .unet import UNet, noise_for, sample

SIZE, STEPS, GUIDANCE = 128, 12, 3.0
"""Pixels of an image's side, steps and guidance that suit the demo's model."""
_COPY_ERROR = 2e-3
"""How far two copies of a channel may differ, relative to the largest weight of their layer: half
precision and no more.
"""


@dataclass(frozen=True)
class DemoModel:
    """U-Net and autoencoder of a model in the demo's layout. Make one with `load`."""

    unet: UNet
    autoencoder: Autoencoder
    scale: Tensor
    shift: Tensor

    @staticmethod
    def fits(shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether a file has that layout."""
        same = (shapes.get(UNET + key) == shape for key, shape in unet_shapes().items())
        return f"{AUTOENCODER}vae_scale" in shapes and all(same)

    @classmethod
    def load(cls, file: Checkpoint, changes: Mapping[str, Tensor] | None = None) -> DemoModel:
        """From a file; `changes` are added to the weights of their keys."""
        weights = {key: file[UNET + key].float() for key in unet_shapes()}
        for key, change in (changes or {}).items():
            name = key.removeprefix(UNET)
            weights[name] = weights[name] + change.float()
        autoencoder = Autoencoder()
        autoencoder.load_state_dict(
            {key: file[AUTOENCODER + key].float() for key in autoencoder.state_dict()}
        )
        scale, shift = (file[f"{AUTOENCODER}vae_{name}"].float() for name in ("scale", "shift"))
        return cls(_build_unet(weights).train(False), autoencoder.train(False), scale, shift)

    @torch.no_grad()
    def generate(
        self,
        rows: Tensor,
        noise: Tensor,
        steps: int,
        guidance: float,
        on_step: Callable[[int], None] | None = None,
    ) -> Tensor:
        """Images (n, height, width, 3) from 0 to 1.

        Args:
            rows: (1 + n, 77, 768), the negative prompt's first.
            noise: (n, 4, height / 8, width / 8).
            steps: Of the sampler.
            guidance: Scale of classifier-free guidance.
            on_step: Called with the number of finished steps.
        """
        latents = sample(self.unet, rows[1:], rows[0], noise, steps, guidance, on_step)
        colors = self.autoencoder.decode((latents / SD1_SCALE - self.shift) * self.scale)
        return colors.clamp(0, 1).permute(0, 2, 3, 1)


def _build_unet(weights: Mapping[str, Tensor]) -> UNet:
    """The U-Net, without its repeated channels where it has them.

    The checkpoint has each trained channel twice, because loaders recognize SD1.x by its 320
    channels. Without the copies it is the same function at a quarter of the cost. An edit keeps the
    copies equal; where someone's training made them differ, all channels are needed.
    """
    narrow = UNet(NARROW)
    folded = {
        key: fold_channels(weights[key], tuple(value.shape))
        for key, value in narrow.state_dict().items()
    }
    for key, weight in weights.items():
        error = (repeat_channels(folded[key], tuple(weight.shape)) - weight).abs().max()
        if error > _COPY_ERROR * weight.abs().max():
            unet = UNet()
            unet.load_state_dict(dict(weights))
            return unet
    narrow.load_state_dict(folded)
    return narrow


def encode_prompts(path: Path, prompts: Sequence[str]) -> Tensor:
    """All rows of the empty prompt and of each prompt, (1 + n, 77, 768), by a file's encoder."""
    encoder = TextSetup().encoder(ModelSource.open(path)).encoder
    texts = ["", *prompts]
    try:
        return torch.stack(encoder.encode(texts, [encoder.context_length] * len(texts)))
    finally:
        encoder.close()


def generate_images(
    path: Path, rows: Tensor, seeds: Sequence[int], on_step: Callable[[int], None] | None = None
) -> Tensor:
    """Images (n, 128, 128, 3) as bytes, one per prompt, with the demo's sampling.

    Args:
        path: The model; its text encoder is not used.
        rows: From `encode_prompts`.
        seeds: One per image.
        on_step: Called with the number of finished steps.
    """
    noise = noise_for(seeds, SIZE // CELL)
    model = DemoModel.load(Checkpoint.open(path))
    return as_bytes(model.generate(rows, noise, STEPS, GUIDANCE, on_step))


def as_bytes(colors: Tensor) -> Tensor:
    """Colors from 0 to 1 as bytes, truncated as by ComfyUI's SaveImage."""
    return (colors * 255).to(torch.uint8)
