"""A U-Net of Stable Diffusion 1.x's layout, cut down to what two CPU cores can train in an hour,
and a plain Euler sampler.

Why our own module: training and the demo must not need ComfyUI. Key names and arithmetic equal
ComfyUI's `UNetModel`, so weights of full width load there unchanged (tests/comfy compares the two).
ComfyUI recognizes SD1.x by 320 channels, a context of 768 and convolutional `proj_in`; the number
of levels, blocks and transformers is free.

Shape: 16 x 16 latents with residual blocks, 8 x 8 with residual blocks and transformers. The text
enters at 8 x 8 only, where it is cheap: one cell there covers 16 x 16 pixels, and the last
blocks at 16 x 16 draw the details.

`narrow=2` has half of all channels. Repeating each of them (`packed_model.repeat_channels`) makes
the full model, which is the same function: a norm sees the same mean and size, and attention here
counts each product of query and key twice.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CHANNELS = 320
CONTEXT = 768
"""Width of the text. It makes a model one of the 1.x family, so it is never shrunk."""
HEADS = 8
LATENT_CHANNELS = 4
NOISE_LEVELS = 1000
_BETAS = torch.linspace(0.00085**0.5, 0.012**0.5, NOISE_LEVELS, dtype=torch.float64) ** 2
SIGNAL = torch.cumprod(1 - _BETAS, dim=0).float()
"""Cumulated alphas of Stable Diffusion 1.x ("scaled linear" betas)."""
SIGMAS = ((1 - SIGNAL) / SIGNAL).sqrt()
_LOGS = SIGMAS.log()


def timestep_embedding(steps: Tensor) -> Tensor:
    """Sinusoids of the step number, (B, 320): cosines first, as in Stable Diffusion."""
    half = CHANNELS // 2
    frequencies = torch.exp(-math.log(10000.0) * torch.arange(half, dtype=torch.float32) / half)
    angles = steps.float()[:, None] * frequencies[None]
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class Residual(nn.Module):
    """Two 3 x 3 convolutions with the time embedding added in between."""

    def __init__(self, inside: int, width: int, time: int) -> None:
        super().__init__()
        self.in_layers = nn.Sequential(
            nn.GroupNorm(32, inside), nn.SiLU(), nn.Conv2d(inside, width, 3, padding=1)
        )
        self.emb_layers = nn.Sequential(nn.SiLU(), nn.Linear(time, width))
        self.out_layers = nn.Sequential(
            nn.GroupNorm(32, width),
            nn.SiLU(),
            nn.Dropout(0.0),
            nn.Conv2d(width, width, 3, padding=1),
        )
        self.skip_connection = nn.Identity() if inside == width else nn.Conv2d(inside, width, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        inner = self.in_layers(x) + self.emb_layers(time)[:, :, None, None]
        return self.skip_connection(x) + self.out_layers(inner)


class Attention(nn.Module):
    """Multi-head attention of (B, N, width) onto a context (B, M, d)."""

    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_k = nn.Linear(context, width, bias=False)
        self.to_v = nn.Linear(context, width, bias=False)
        self.to_out = nn.Sequential(nn.Linear(width, width), nn.Dropout(0.0))
        self.scale = CHANNELS / width / math.sqrt(CHANNELS / HEADS)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        q, k, v = (
            t.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for t in (self.to_q(x), self.to_k(context), self.to_v(context))
        )
        return self.to_out(
            F.scaled_dot_product_attention(q, k, v, scale=self.scale).transpose(1, 2).flatten(-2)
        )


class GatedUnit(nn.Module):
    """Linear layer whose second half gates the first (GEGLU)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, 8 * width)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.proj(x).chunk(2, dim=-1)
        return value * F.gelu(gate)


class FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(GatedUnit(width), nn.Dropout(0.0), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class TransformerBlock(nn.Module):
    """Self attention, cross attention to the prompt (`attn2`, the layers an erasure edits),
    feed-forward.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attn1, self.attn2 = Attention(width, width), Attention(width, CONTEXT)
        self.ff = FeedForward(width)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        tokens = self.norm1(x)
        x = x + self.attn1(tokens, tokens)
        x = x + self.attn2(self.norm2(x), context)
        return x + self.ff(self.norm3(x))


class SpatialTransformer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, width, eps=1e-6)
        self.proj_in = nn.Conv2d(width, width, 1)
        self.transformer_blocks = nn.ModuleList([TransformerBlock(width)])
        self.proj_out = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        tokens = self.proj_in(self.norm(x)).flatten(2).transpose(1, 2)
        for block in self.transformer_blocks:
            tokens = block(tokens, context)
        return x + self.proj_out(tokens.transpose(1, 2).unflatten(2, (height, width)).contiguous())


class Downsample(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.op = nn.Conv2d(width, width, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.op(x)


class Upsample(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


class UNet(nn.Module):
    """Predicts the noise of (B, 4, H, W) latents at steps (B,) under prompt rows (B, 77, 768); H
    and W even.

    `width`, a multiple of 32, is for models whose channels are never repeated.
    """

    def __init__(self, narrow: int = 1, width: int | None = None) -> None:
        super().__init__()
        time = 4 * CHANNELS // narrow**2
        width = width or CHANNELS // narrow

        def residual(inside: int = width) -> Residual:
            return Residual(inside, width, time)

        self.time_embed = nn.Sequential(nn.Linear(CHANNELS, time), nn.SiLU(), nn.Linear(time, time))
        self.input_blocks = _blocks(
            [nn.Conv2d(LATENT_CHANNELS, width, 3, padding=1)],
            [residual()],
            [Downsample(width)],
            [residual(), SpatialTransformer(width)],
        )
        self.middle_block = nn.ModuleList([residual(), SpatialTransformer(width), residual()])
        self.output_blocks = _blocks(
            [residual(2 * width), SpatialTransformer(width)],
            [residual(2 * width), SpatialTransformer(width), Upsample(width)],
            [residual(2 * width)],
            [residual(2 * width)],
        )
        self.out = nn.Sequential(
            nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, LATENT_CHANNELS, 3, padding=1)
        )

    def forward(self, x: Tensor, steps: Tensor, context: Tensor) -> Tensor:
        """Predicts the noise in latents.

        Args:
            x: `n x 4 x h x w`, the noisy latents.
            steps: `n`, the timestep of each.
            context: `n x tokens x d`, the encoded prompts.
        """
        time = self.time_embed(timestep_embedding(steps))
        skips: list[Tensor] = []
        for block in self.input_blocks:
            x = _run(block, x, time, context)
            skips.append(x)
        x = _run(self.middle_block, x, time, context)
        for block in self.output_blocks:
            x = _run(block, torch.cat([x, skips.pop()], dim=1), time, context)
        return self.out(x)


def _blocks(*blocks: list[nn.Module]) -> nn.ModuleList:
    return nn.ModuleList(nn.ModuleList(layers) for layers in blocks)


def _run(layers: nn.Module, x: Tensor, time: Tensor, context: Tensor) -> Tensor:
    for layer in layers.children():
        if isinstance(layer, Residual):
            x = layer(x, time)
        elif isinstance(layer, SpatialTransformer):
            x = layer(x, context)
        else:
            x = layer(x)
    return x


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
    """Latents (n, 4, H, W) of prompts, as ComfyUI's KSampler makes them with "euler" and "normal".
    They are in the space the U-Net works in; ComfyUI divides them by 0.18215 on the way out.

    Args:
        unet: Predicts the noise.
        rows: The prompts, (n, 77, 768).
        empty: The prompt to be guided away from, (77, 768).
        noise: (n, 4, H, W).
        steps: Of the sampler.
        scale: Of classifier-free guidance.
        on_step: Called with the number of finished steps.
    """
    sigmas = torch.cat([_sigma_at(torch.linspace(NOISE_LEVELS - 1, 0, steps)), torch.zeros(1)])
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
