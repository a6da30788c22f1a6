"""The U-Net of the small world: Stable Diffusion 1.x's layout, cut down to what 2 CPU cores can train.

Why our own module: training must not need ComfyUI. Key names and arithmetic equal ComfyUI's `UNetModel`, so the trained
weights load there unchanged (tests/test_world.py compares the two outputs). ComfyUI recognises SD1.x by 320 channels, a
context of 768 and convolutional `proj_in`; the number of levels, blocks and transformers is free.

Shape: 12 x 12 pixels with residual blocks, 6 x 6 with residual blocks and transformers. The text enters at 6 x 6 only,
where it is cheap: one cell there stands for 2 x 2 pixels, and the last blocks at 12 x 12 draw the texture.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CHANNELS = 320
CONTEXT = 768
HEADS = 8
LATENT_CHANNELS = 4


def timestep_embedding(steps: Tensor) -> Tensor:
    """Sinusoids of the step number, (B, 320): cosines first, as in Stable Diffusion."""
    half = CHANNELS // 2
    frequencies = torch.exp(-math.log(10000.0) * torch.arange(half, dtype=torch.float32) / half)
    angles = steps.float()[:, None] * frequencies[None]
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class Residual(nn.Module):
    """Two 3 x 3 convolutions with the time embedding added in between."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.in_layers = nn.Sequential(
            nn.GroupNorm(32, channels), nn.SiLU(), nn.Conv2d(channels, CHANNELS, 3, padding=1)
        )
        self.emb_layers = nn.Sequential(nn.SiLU(), nn.Linear(4 * CHANNELS, CHANNELS))
        self.out_layers = nn.Sequential(
            nn.GroupNorm(32, CHANNELS), nn.SiLU(), nn.Dropout(0.0), nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        )
        self.skip_connection = nn.Identity() if channels == CHANNELS else nn.Conv2d(channels, CHANNELS, 1)
        self.idle = False

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        if self.idle:
            return self.skip_connection(x)
        inner = self.in_layers(x) + self.emb_layers(time)[:, :, None, None]
        return self.skip_connection(x) + self.out_layers(inner)


class Attention(nn.Module):
    """Multi-head attention of (B, N, 320) onto a context (B, M, d)."""

    def __init__(self, context: int) -> None:
        super().__init__()
        self.to_q = nn.Linear(CHANNELS, CHANNELS, bias=False)
        self.to_k = nn.Linear(context, CHANNELS, bias=False)
        self.to_v = nn.Linear(context, CHANNELS, bias=False)
        self.to_out = nn.Sequential(nn.Linear(CHANNELS, CHANNELS), nn.Dropout(0.0))

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        heads = [
            t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (self.to_q(x), self.to_k(context), self.to_v(context))
        ]
        return self.to_out(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(-2))


class GatedUnit(nn.Module):
    """Linear layer whose second half gates the first (GEGLU)."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(CHANNELS, 8 * CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.proj(x).chunk(2, dim=-1)
        return value * F.gelu(gate)


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(GatedUnit(), nn.Dropout(0.0), nn.Linear(4 * CHANNELS, CHANNELS))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class TransformerBlock(nn.Module):
    """Self attention, cross attention to the prompt (`attn2`, the layers an erasure edits), feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.attn1, self.attn2, self.ff = Attention(CHANNELS), Attention(CONTEXT), FeedForward()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(CHANNELS) for _ in range(3))

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        own = self.norm1(x)
        x = x + self.attn1(own, own)
        x = x + self.attn2(self.norm2(x), context)
        return x + self.ff(self.norm3(x))


class SpatialTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, CHANNELS, eps=1e-6)
        self.proj_in = nn.Conv2d(CHANNELS, CHANNELS, 1)
        self.transformer_blocks = nn.ModuleList([TransformerBlock()])
        self.proj_out = nn.Conv2d(CHANNELS, CHANNELS, 1)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        tokens = self.proj_in(self.norm(x)).flatten(2).transpose(1, 2)
        for block in self.transformer_blocks:
            tokens = block(tokens, context)
        return x + self.proj_out(tokens.transpose(1, 2).unflatten(2, (height, width)).contiguous())


class Downsample(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.op = nn.Conv2d(CHANNELS, CHANNELS, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.op(x)


class Upsample(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


class UNet(nn.Module):
    """Predicts the noise of (B, 4, H, W) latents at steps (B,) under prompt rows (B, 77, 768); H and W even."""

    def __init__(self, middle: bool = False) -> None:
        super().__init__()
        wide = 2 * CHANNELS
        self.time_embed = nn.Sequential(
            nn.Linear(CHANNELS, 4 * CHANNELS), nn.SiLU(), nn.Linear(4 * CHANNELS, 4 * CHANNELS)
        )
        self.input_blocks = nn.ModuleList(
            nn.ModuleList(layers)
            for layers in (
                [nn.Conv2d(LATENT_CHANNELS, CHANNELS, 3, padding=1)],
                [Residual(CHANNELS)],
                [Downsample()],
                [Residual(CHANNELS), SpatialTransformer()],
            )
        )
        self.middle_block = nn.ModuleList(
            [Residual(CHANNELS), SpatialTransformer(), Residual(CHANNELS)] if middle else []
        )
        self.output_blocks = nn.ModuleList(
            nn.ModuleList(layers)
            for layers in (
                [Residual(wide), SpatialTransformer()],
                [Residual(wide), SpatialTransformer(), Upsample()],
                [Residual(wide)],
                [Residual(wide)],
            )
        )
        self.out = nn.Sequential(
            nn.GroupNorm(32, CHANNELS), nn.SiLU(), nn.Conv2d(CHANNELS, LATENT_CHANNELS, 3, padding=1)
        )

    def forward(self, x: Tensor, steps: Tensor, context: Tensor) -> Tensor:
        time = self.time_embed(timestep_embedding(steps))
        kept: list[Tensor] = []
        for block in self.input_blocks:
            x = _run(block, x, time, context)
            kept.append(x)
        x = _run(self.middle_block, x, time, context)
        for block in self.output_blocks:
            x = _run(block, torch.cat([x, kept.pop()], dim=1), time, context)
        return self.out(x)


def _run(layers: nn.ModuleList, x: Tensor, time: Tensor, context: Tensor) -> Tensor:
    for layer in layers:
        if isinstance(layer, Residual):
            x = layer(x, time)
        elif isinstance(layer, SpatialTransformer):
            x = layer(x, context)
        else:
            x = layer(x)
    return x


def rest_wide_blocks(unet: UNet, idle: bool) -> None:
    """Let two of the three 12 x 12 blocks pass their input on, or put them to work.

    They are a third of a step's cost. Their branches start at zero, so a U-Net trained without them is the same
    function when they join in for the last part of the training.
    """
    for block in (unet.input_blocks[1], unet.output_blocks[2]):
        block[0].idle = idle


@torch.no_grad()
def start_from_identity(unet: UNet) -> None:
    """Initialise so that the untrained U-Net returns its input: right at high noise, where x is nearly all noise.

    The input convolution carries each latent channel as +x and -x, the last shortcut passes them on, every residual
    branch starts at zero, and the output takes silu(a) - silu(-a) = a. Saves the first half hour of learning to copy.
    """
    for module in unet.modules():
        if isinstance(module, Residual):
            module.out_layers[3].weight.zero_()
            module.out_layers[3].bias.zero_()
        elif isinstance(module, SpatialTransformer):
            module.proj_out.weight.zero_()
            module.proj_out.bias.zero_()
    first, shortcut, last = unet.input_blocks[0][0], unet.output_blocks[-1][0].skip_connection, unet.out[2]
    carried = [10 * group + place for group in range(LATENT_CHANNELS) for place in (0, 1)]  # a pair in each norm group
    shortcut.weight[carried] = 0.0
    last.weight.mul_(0.1)
    last.bias.zero_()
    for latent in range(LATENT_CHANNELS):
        for sign, place in ((1.0, 0), (-1.0, 1)):
            row = 10 * latent + place
            first.weight[row].zero_()
            first.weight[row, latent, 1, 1] = sign
            first.bias[row] = 0.0
            shortcut.weight[row, CHANNELS + row] = 1.0
            shortcut.bias[row] = 0.0
            last.weight[:, row].zero_()
            last.weight[latent, row, 1, 1] = (
                0.5 * sign
            )  # the norm of a group with 2 busy channels of 10 about doubles them
    unet.out[0].weight[carried] = 1.0
