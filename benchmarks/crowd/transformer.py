"""A joint-attention transformer of Stable Diffusion 3's layout, small enough for one CPU core, on
pixels; and its sampler.

Key names and arithmetic equal ComfyUI's `MMDiT` (tests/comfy compares the two). ComfyUI tells SD3
by 16 channels, and its size by the width: 64 for each block. Three colors of 2 x 2 pixels fill 12
of the channels, the others are zero.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CHANNELS, PATCH, FREQUENCIES = 16, 2, 256
FINE = 2
"""Pixels along the side of what becomes one position of the latents."""
COLORS = 3 * FINE * FINE
HEAD = 64
"""Width of a head; there are as many heads as blocks."""
TEXT = 768
NOISE_LEVELS = 1000
"""The transformer reads noise levels times this."""


def positions(width: int, side: int) -> Tensor:
    """Sinusoids of the place of each patch, (1, side * side, width)."""
    omega = 1 / 10000 ** (torch.arange(width // 4, dtype=torch.float64) / (width // 4))
    angles = torch.arange(side, dtype=torch.float64)[:, None] * omega
    line = torch.cat([angles.sin(), angles.cos()], dim=1)
    across = line[None].expand(side, side, -1)
    down = line[:, None].expand(side, side, -1)
    return torch.cat([across, down], dim=2).reshape(1, side * side, width).float()


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    normal = F.layer_norm(x, x.shape[-1:], eps=1e-6)
    return torch.addcmul(shift[:, None], normal, 1 + scale[:, None])


def _modulation(width: int, count: int) -> nn.Sequential:
    return nn.Sequential(nn.SiLU(), nn.Linear(width, count * width))


class Attention(nn.Module):
    """The projections of one stream."""

    def __init__(self, width: int, last: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        if not last:
            self.proj = nn.Linear(width, width)


class Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class Stream(nn.Module):
    """What a block does to its text or to its image tokens. `last`: nobody reads the result."""

    def __init__(self, width: int, last: bool = False) -> None:
        super().__init__()
        self.last = last
        self.attn = Attention(width, last)
        if not last:
            self.mlp = Mlp(width)
        self.adaLN_modulation = _modulation(width, 2 if last else 6)

    def before(self, x: Tensor, condition: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Queries, keys and values side by side, and the modulation of what follows."""
        shift, scale, *rest = self.adaLN_modulation(condition).chunk(2 if self.last else 6, dim=1)
        return self.attn.qkv(modulate(x, shift, scale)), tuple(rest)

    def after(self, x: Tensor, read: Tensor, rest: tuple[Tensor, ...]) -> Tensor:
        gate, shift, scale, gate_mlp = rest
        x = torch.addcmul(x, gate[:, None], self.attn.proj(read))
        return torch.addcmul(x, gate_mlp[:, None], self.mlp(modulate(x, shift, scale)))


class Block(nn.Module):
    """Text and image tokens attend to each other."""

    def __init__(self, width: int, last: bool) -> None:
        super().__init__()
        self.context_block, self.x_block = Stream(width, last), Stream(width)

    def forward(self, text: Tensor, x: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        count, (size, _, width) = text.shape[1], x.shape
        parts, text_rest = self.context_block.before(text, condition)
        own, rest = self.x_block.before(x, condition)
        joint = torch.cat([parts, own], dim=1).view(size, -1, 3, width // HEAD, HEAD)
        query, key, value = joint.permute(2, 0, 3, 1, 4)
        # Written out: on a CPU this trains faster than `scaled_dot_product_attention`.
        read = (query @ key.mT / HEAD**0.5).softmax(dim=-1) @ value
        read = read.transpose(1, 2).reshape(size, -1, width)
        if not self.context_block.last:
            text = self.context_block.after(text, read[:, :count], text_rest)
        return text, self.x_block.after(x, read[:, count:], rest)


class Patches(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(CHANNELS, width, PATCH, stride=PATCH)


class Embedder(nn.Module):
    """Noise level or pooled text to the condition of all blocks."""

    def __init__(self, inside: int, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(inside, width), nn.SiLU(), nn.Linear(width, width))


class Final(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, PATCH * PATCH * CHANNELS)
        self.adaLN_modulation = _modulation(width, 2)


class Transformer(nn.Module):
    """Guesses the velocity, noise minus image, of latents (B, 16, H, W) at noise levels (B,) in
    0..1 under prompt rows (B, M, 768) and pooled prompts (B, 768).
    """

    def __init__(self, depth: int = 3, side: int = 8) -> None:
        super().__init__()
        width = HEAD * depth
        self.x_embedder = Patches(width)
        self.t_embedder = Embedder(FREQUENCIES, width)
        self.y_embedder = Embedder(TEXT, width)
        self.context_embedder = nn.Linear(TEXT, width)
        self.pos_embed = nn.Parameter(positions(width, side))
        self.joint_blocks = nn.ModuleList(Block(width, i == depth - 1) for i in range(depth))
        self.final_layer = Final(width)
        self._start()

    def _start(self) -> None:
        """Every block begins as the identity, as in DiT, and the guess as zero."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias") or "adaLN" in name or name.startswith("final_layer"):
                nn.init.zeros_(parameter)
            elif name != "pos_embed":
                nn.init.xavier_uniform_(parameter.flatten(1))
        for embedder in (self.y_embedder.mlp[0], self.context_embedder):
            nn.init.normal_(embedder.weight, std=1 / 28)  # rows are 28 long

    def forward(self, x: Tensor, levels: Tensor, context: Tensor, pooled: Tensor) -> Tensor:
        size, _, high, wide = x.shape
        tokens = self.x_embedder.proj(x).flatten(2).transpose(1, 2) + self.pos_embed
        condition = self.t_embedder.mlp(level_embedding(levels)) + self.y_embedder.mlp(pooled)
        text = self.context_embedder(context)
        for block in self.joint_blocks:
            text, tokens = block(text, tokens, condition)
        shift, scale = self.final_layer.adaLN_modulation(condition).chunk(2, dim=1)
        patches = self.final_layer.linear(modulate(tokens, shift, scale))
        patches = patches.view(size, high // PATCH, wide // PATCH, PATCH, PATCH, CHANNELS)
        return patches.permute(0, 5, 1, 3, 2, 4).reshape(size, CHANNELS, high, wide)


def level_embedding(levels: Tensor) -> Tensor:
    """Sinusoids of the noise level, (B, 256): cosines first."""
    half = FREQUENCIES // 2
    frequencies = torch.exp(-math.log(10000.0) * torch.arange(half) / half)
    angles = NOISE_LEVELS * levels[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=1)


def to_latents(colors: Tensor) -> Tensor:
    """(B, 3, 32, 32) to (B, 16, 16, 16)."""
    folded = F.pixel_unshuffle(colors, FINE)
    return F.pad(folded, (0, 0, 0, 0, 0, CHANNELS - COLORS))


def to_colors(latents: Tensor) -> Tensor:
    return F.pixel_shuffle(latents[:, :COLORS], FINE)


def levels_of(steps: int, shift: float) -> Tensor:
    """Noise levels from 1 to 0, as ComfyUI's "simple" scheduler takes them from SD3's."""
    even = torch.linspace(1, 0, steps + 1)
    return shift * even / (1 + (shift - 1) * even)


def sample(
    model: Callable[..., Tensor],
    prompts: tuple[Tensor, Tensor],
    empty: tuple[Tensor, Tensor],
    noise: Tensor,
    levels: Tensor,
    scale: float,
) -> Tensor:
    """Pictures (n, 3, 32, 32) by Euler's method.

    Args:
        model: Guesses the velocity.
        prompts: Rows (n, M, 768) and pooled (n, 768).
        empty: The same of the prompt to be guided away from, without n.
        noise: (n, 3, 32, 32).
        levels: Noise levels, the last is 0.
        scale: Of classifier-free guidance.
    """
    texts = [
        torch.cat([own, none.expand_as(own)]) for own, none in zip(prompts, empty, strict=True)
    ]
    x = noise
    for now, after in itertools.pairwise(levels):
        both = to_latents(x).repeat(2, 1, 1, 1)
        velocity = model(both, now.expand(len(both)), *texts).float()
        guided, free = to_colors(velocity).chunk(2)
        x = x + (after - now) * (free + scale * (guided - free))
    return x
