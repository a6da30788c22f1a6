"""Noise schedule of Stable Diffusion 1.x and a plain Euler sampler: what ComfyUI's KSampler does
with "euler" and "normal".

Latents are in the space the U-Net works in; ComfyUI divides them by 0.18215 on the way out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .unet import LATENT_CHANNELS, UNet

STEPS = 1000


def _signal_levels() -> Tensor:
    """Cumulated alphas of the 1000 steps ("scaled linear" betas from 0.00085 to 0.012)."""
    betas = torch.linspace(0.00085**0.5, 0.012**0.5, STEPS, dtype=torch.float64) ** 2
    return torch.cumprod(1 - betas, dim=0).float()


SIGNAL = _signal_levels()
SIGMAS = ((1 - SIGNAL) / SIGNAL).sqrt()
_LOGS = SIGMAS.log()


def noise_for(seeds: Sequence[int], height: int, width: int | None = None) -> Tensor:
    """Initial latents, (n, 4, height, width): each from its own seed, as ComfyUI makes those of a
    single image.

    Args:
        seeds: One seed per image.
        height: Height in latent pixels.
        width: Width in latent pixels; None for a square.
    """
    shape = (1, LATENT_CHANNELS, height, width or height)
    return torch.cat(
        [torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    )


@torch.no_grad()
def sample(
    unet: UNet,
    rows: Tensor,
    empty: Tensor,
    noise: Tensor,
    steps: int,
    scale: float,
    on_step: Callable[[int], None] | None = None,
) -> Tensor:
    """Latents (n, 4, H, W) of prompts.

    Args:
        unet: Predicts the noise.
        rows: The prompts, (n, 77, 768).
        empty: The prompt to be guided away from, (77, 768).
        noise: (n, 4, H, W).
        steps: Of the sampler.
        scale: Of classifier-free guidance.
        on_step: Called with the number of finished steps.
    """
    sigmas = torch.cat([_sigma_at(torch.linspace(STEPS - 1, 0, steps)), torch.zeros(1)])
    context = torch.cat([rows, empty.expand_as(rows)])
    x = noise * (1 + sigmas[0] ** 2).sqrt()
    for done, (now, after) in enumerate(itertools.pairwise(sigmas), 1):
        scaled = (x / (1 + now**2).sqrt()).repeat(2, 1, 1, 1)
        nearest = (now.log() - _LOGS).abs().argmin()
        guided, free = unet(scaled, nearest.expand(len(scaled)), context).chunk(2)
        x = x + (after - now) * (free + scale * (guided - free))
        if on_step is not None:
            on_step(done)
    return x


def _sigma_at(times: Tensor) -> Tensor:
    """Sigmas between whole steps, by their logarithms."""
    low, high, fraction = times.floor().long(), times.ceil().long(), times.frac()
    return ((1 - fraction) * _LOGS[low] + fraction * _LOGS[high]).exp()
