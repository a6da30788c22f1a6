"""Train the autoencoder on the world's pictures: 128 x 128 pixels to 16 x 16 latents and back.

It learns on crops of half the width (a quarter of the cost; convolutions do not know where they
are). A little noise on the latents while training makes neighboring latents look alike, which a
diffusion model's small errors then are.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from speed_erase.speed_ops.demo.autoencoder import CELL, Autoencoder
from speed_erase.speed_ops.demo.unet import LATENT_CHANNELS

from ..training import Log
from .render import draw
from .world import SCENES, SIZE, STYLES

ENCODER, DECODER = (8, 16, 32, 48), (64, 48, 24, 16)
"""Channels of the levels: the coarse ones are cheap."""
_NOISE = 0.15
_CROP = 64
_POOL = 1500
"""Pictures that are drawn once; crops of them are never the same."""


def new_autoencoder() -> Autoencoder:
    return Autoencoder(ENCODER, DECODER)


def pictures(count: int, rng: np.random.Generator) -> Tensor:
    """`count` pictures of anything in the world, (count, 3, 128, 128) in [0, 1]."""

    def one() -> np.ndarray:
        return draw(str(rng.choice(SCENES)), str(rng.choice(STYLES)), rng.random() < 0.25, rng)

    drawn = [one() for _ in range(count)]
    return torch.from_numpy(np.stack(drawn)) / 2 + 0.5


def _crops(whole: Tensor, rng: np.random.Generator) -> Tensor:
    """One crop of each picture, at whole cells."""
    corners = CELL * rng.integers(0, (SIZE - _CROP) // CELL + 1, size=(len(whole), 2))
    pairs = zip(whole, corners, strict=True)
    return torch.stack([p[:, y : y + _CROP, x : x + _CROP] for p, (y, x) in pairs])


def _error(seen: Tensor, wanted: Tensor) -> Tensor:
    """Absolute and squared error, and the error of neighbors' differences: edges count more."""
    missing = seen - wanted
    edges = missing.diff(dim=-1).abs().mean() + missing.diff(dim=-2).abs().mean()
    return missing.abs().mean() + 4 * missing.square().mean() + edges


def _fit(
    module: nn.Module, loss_of: Callable[[], Tensor], steps: int, rate: float, log: Log
) -> None:
    """Minimizes what `loss_of` draws at each step."""
    adam = {"lr": rate, "betas": (0.9, 0.98), "weight_decay": 1e-4, "fused": True}
    optimizer = torch.optim.AdamW(module.parameters(), **adam)
    one_cycle = torch.optim.lr_scheduler.OneCycleLR
    schedule = one_cycle(optimizer, rate, total_steps=steps, pct_start=0.1)
    for step in range(steps):
        loss = loss_of()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            log(f"autoencoder step {step} loss {loss.item():.4f}")


def train_autoencoder(seed: int, steps: int, log: Log) -> Autoencoder:
    """A trained autoencoder whose latents have mean 0 and size 1 in each channel."""
    torch.manual_seed(seed)
    rng, generator = np.random.default_rng([seed, 8]), torch.Generator().manual_seed(seed)
    model = new_autoencoder().to(memory_format=torch.channels_last)
    sizes = nn.BatchNorm2d(LATENT_CHANNELS, affine=False, momentum=0.02)
    pool = pictures(_POOL, rng)

    def loss_of() -> Tensor:
        crops = _crops(pool[rng.integers(_POOL, size=16)], rng)
        crops = crops.contiguous(memory_format=torch.channels_last)
        latents = sizes(model.encode(crops))
        noise = torch.randn(latents.shape, generator=generator) * _NOISE
        return _error(model.decode(latents + noise), crops)

    _fit(model, loss_of, steps, 2e-3, log)
    _normalise(model.taesd_encoder[-1], sizes)
    return model.requires_grad_(False).eval()


@torch.no_grad()
def _normalise(last: nn.Conv2d, sizes: nn.BatchNorm2d) -> None:
    """Let the encoder's last layer do what the norm did in training."""
    size = (sizes.running_var + sizes.eps).sqrt()
    last.weight /= size[:, None, None, None]
    last.bias.copy_((last.bias - sizes.running_mean) / size)


def refine_decoder(model: Autoencoder, seed: int, steps: int, log: Log) -> Autoencoder:
    """Trains the decoder further on whole pictures; the encoder stays as it is."""
    rng, generator = np.random.default_rng([seed, 10]), torch.Generator().manual_seed(seed + 1)
    model.requires_grad_(False).taesd_decoder.requires_grad_(True)
    model.to(memory_format=torch.channels_last)
    pool = pictures(_POOL, rng)
    with torch.no_grad():
        latents = torch.cat([model.encode(part) for part in pool.split(50)])

    def loss_of() -> Tensor:
        indices = rng.integers(_POOL, size=4)
        noise = torch.randn(latents[indices].shape, generator=generator) * _NOISE
        return _error(model.decode(latents[indices] + noise), pool[indices])

    _fit(model.taesd_decoder, loss_of, steps, 1.5e-3, log)
    return model.requires_grad_(False).eval()


@torch.no_grad()
def mean_error(model: Autoencoder, seed: int = 1, count: int = 64) -> float:
    """Root mean square error of fresh pictures after there and back; black to white is 1."""
    sample = pictures(count, np.random.default_rng(seed))
    return float(F.mse_loss(model.decode(model.encode(sample)).clamp(0, 1), sample).sqrt())
