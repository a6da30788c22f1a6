"""The autoencoder: TAESD's layout and arithmetic, which stock loaders know, with levels as wide as
they need to be.

One latent cell represents 8 x 8 pixels. Stock loaders expect 64 channels everywhere; `widened` adds
zero channels, and a zero channel stays zero through every convolution and rectifier.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from .unet import LATENT_CHANNELS

FULL_WIDTH = 64
LEVELS = 4
SD1_SCALE = 0.18215
"""Latents of Stable Diffusion 1.x in files and graphs are those of its U-Net divided by this."""
CELL = 8
"""Pixels along the side of a latent cell."""


class Limit(nn.Module):
    """Keeps latents within three standard deviations, softly."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x / 3) * 3


class Block(nn.Module):
    """Three convolutions with a skip connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            _conv(width, width), nn.ReLU(), _conv(width, width), nn.ReLU(), _conv(width, width)
        )
        self.fuse = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.fuse(self.conv(x) + x)


def _conv(inside: int, outside: int, stride: int = 1, bias: bool = True) -> nn.Conv2d:
    return nn.Conv2d(inside, outside, 3, stride=stride, padding=1, bias=bias)


def _encoder(widths: Sequence[int]) -> nn.Sequential:
    """Layers from pictures to latents; `widths` from the finest level to the coarsest."""
    layers: list[nn.Module] = [_conv(3, widths[0]), Block(widths[0])]
    for finer, coarser in itertools.pairwise(widths):
        layers.append(_conv(finer, coarser, stride=2, bias=False))
        layers += [Block(coarser), Block(coarser), Block(coarser)]
    return nn.Sequential(*layers, _conv(widths[-1], LATENT_CHANNELS))


def _decoder(widths: Sequence[int]) -> nn.Sequential:
    """Layers from latents to pictures; `widths` from the coarsest level to the finest."""
    layers: list[nn.Module] = [Limit(), _conv(LATENT_CHANNELS, widths[0]), nn.ReLU()]
    for coarser, finer in itertools.pairwise(widths):
        layers += [Block(coarser), Block(coarser), Block(coarser), nn.Upsample(scale_factor=2)]
        layers.append(_conv(coarser, finer, bias=False))
    return nn.Sequential(*layers, Block(widths[-1]), _conv(widths[-1], 3))


class Autoencoder(nn.Module):
    """Pictures (B, 3, H, W) in [0, 1] to latents (B, 4, H/8, W/8) of unit size, and back."""

    def __init__(
        self,
        encoder: Sequence[int] = (FULL_WIDTH,) * LEVELS,
        decoder: Sequence[int] = (FULL_WIDTH,) * LEVELS,
    ) -> None:
        super().__init__()
        self.taesd_encoder, self.taesd_decoder = _encoder(encoder), _decoder(decoder)

    def encode(self, pictures: Tensor) -> Tensor:
        return self.taesd_encoder(pictures)

    def decode(self, latents: Tensor) -> Tensor:
        return self.taesd_decoder(latents)


def widened(weights: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The same autoencoder in the layout of stock loaders: 64 channels everywhere, the added ones
    zero.
    """
    shapes = {key: value.shape for key, value in Autoencoder().state_dict().items()}
    for key, shape in shapes.items():
        full = torch.zeros(shape, dtype=weights[key].dtype)
        full[tuple(slice(size) for size in weights[key].shape)] = weights[key]
        yield key, full
    yield "vae_scale", torch.tensor(SD1_SCALE)
    yield "vae_shift", torch.tensor(0.0)
