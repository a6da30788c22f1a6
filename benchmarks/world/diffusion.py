"""Noise schedule of SD1.x and a plain Euler sampler, the arithmetic of ComfyUI's "euler" with "normal" steps.

The latents are pictures in [-1, 1] in the space the U-Net works in; ComfyUI divides them by 0.18215 on the way out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .unet import UNet

STEPS = 1000
COMFY_SCALE = 0.18215


def signal_levels() -> Tensor:
    """Cumulated alphas of the 1000 steps ("scaled linear" betas from 0.00085 to 0.012)."""
    betas = torch.linspace(0.00085**0.5, 0.012**0.5, STEPS, dtype=torch.float64) ** 2
    return torch.cumprod(1 - betas, dim=0).float()


SIGNAL = signal_levels()
SIGMAS = ((1 - SIGNAL) / SIGNAL).sqrt()


def add_noise(pictures: Tensor, steps: Tensor, noise: Tensor) -> Tensor:
    signal = SIGNAL[steps][:, None, None, None]
    return signal.sqrt() * pictures + (1 - signal).sqrt() * noise


def loss_weights(steps: Tensor) -> Tensor:
    """Weights of the squared noise error: min-SNR (5) at low noise, 1 + sigma^2 up to 30 at high noise.

    At high noise even a wrong picture is a small error of the noise; but there the prompt decides palette and shape.
    """
    squared = SIGMAS[steps] ** 2
    return (5 * squared).clamp(max=1.0) * (1 + squared.clamp(max=30.0))


@torch.no_grad()
def sample(unet: UNet, rows: Tensor, empty: Tensor, noise: Tensor, steps: int = 12, scale: float = 3.0) -> Tensor:
    """Pictures (n, 4, H, W) for prompt rows (n, 77, 768), guided away from the empty prompt's rows (77, 768)."""
    times = torch.linspace(STEPS - 1, 0, steps)
    sigmas = torch.cat([_sigma_at(times), torch.zeros(1)])
    context = torch.cat([rows, empty.expand_as(rows)])
    x = noise * (1 + sigmas[0] ** 2).sqrt()
    for now, after, time in zip(sigmas[:-1], sigmas[1:], times, strict=True):
        scaled = (x / (1 + now**2).sqrt()).repeat(2, 1, 1, 1)
        wanted, free = unet(scaled, time.expand(len(scaled)), context).chunk(2)
        x = x + (after - now) * (free + scale * (wanted - free))
    return x


def _sigma_at(times: Tensor) -> Tensor:
    low, part = times.floor().long(), times.frac()
    high = times.ceil().long()
    return ((1 - part) * SIGMAS[low].log() + part * SIGMAS[high].log()).exp()
