"""A checkpoint of random values: Stable Diffusion 1.x's keys, the real width and vocabulary of its
text.

It draws nothing. Its text encoder is a random transformer over token embeddings whose spectrum
decays as in a trained one, so names share most directions and differ in some: there is something to
erase, something to harm, and a null space between them. What the certificate says about it is
measured like on any model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from speed_erase.speed_ops.demo.packed_model import CONTEXT, Entry, text_encoder_layout
from speed_erase.speed_ops.files.tensors import write_tensors
from speed_erase.speed_ops.progress import Progress

CHANNELS = 64
TEXT_LAYERS = 2
VAE_CHANNELS = 16
SEED = 2503
_DECAY = 0.5
"""Token embeddings' standard deviation along the k-th direction falls like k to minus this."""
_MIXING = 0.3
"""Scale of what each block adds: small enough that a token stays recognisable in its row, as in a
trained encoder.
"""
_TEXT = "cond_stage_model.transformer.text_model."
_METADATA = {
    "format": "pt",
    "modelspec.title": "Random weights",
    "modelspec.architecture": "stable-diffusion-v1",
}


def write_random_checkpoint(
    path: Path,
    *,
    channels: int = CHANNELS,
    text_layers: int = TEXT_LAYERS,
    start: str | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Writes the file, half precision, the same bytes every time; one tensor in memory at a time.

    `start`: the text encoder as CLIP's training begins, in one of the `STARTS`, without a spectrum:
    rows of names fill every direction alike.
    """
    shapes = dict(_shapes(channels, text_layers))
    generator = torch.Generator().manual_seed(SEED)
    fresh = STARTS[start](text_layers) if start else {}
    values = (_value(key, shape, generator, fresh).half() for key, shape in shapes.items())
    kinds = {key: ("F16", shape) for key, shape in shapes.items()}
    write_tensors(path, kinds, values, _METADATA, force=force, progress=progress, stage="demo")
    return path


def _shapes(channels: int, text_layers: int) -> Iterator[Entry]:
    for prefix, entries in (
        (_TEXT, text_encoder_layout(text_layers)),
        ("first_stage_model.", autoencoder_layout(VAE_CHANNELS)),
        ("model.diffusion_model.", unet_layout(channels)),
    ):
        for name, shape in entries:
            yield prefix + name, shape


def _as_published(layers: int) -> dict[str, float]:
    """{module of the text encoder: standard deviation of its weights} in CLIP's own code."""
    wide, deep = CONTEXT**-0.5, (2 * layers) ** -0.5
    into = dict.fromkeys(("q_proj", "k_proj", "v_proj"), wide)
    out = {"out_proj": wide * deep, "fc1": (2 * CONTEXT) ** -0.5, "fc2": wide * deep}
    return {"token_embedding": 0.02, "position_embedding": 0.01, **into, **out}


def _as_in_transformers(layers: int) -> dict[str, float]:
    """As above, in the transformers library: depth is made up for before attention instead of after
    it, so that every token looks at all others nearly alike."""
    published, deep = _as_published(layers), (2 * layers) ** -0.5
    into = {name: published[name] * deep for name in ("q_proj", "k_proj", "v_proj")}
    return published | into | {"out_proj": published["out_proj"] / deep, "position_embedding": 0.02}


STARTS = {"CLIP": _as_published, "transformers": _as_in_transformers}
"""Whose code the text encoder's first weights are drawn as."""


def _value(
    key: str, shape: tuple[int, ...], generator: torch.Generator, fresh: Mapping[str, float]
) -> Tensor:
    """Random weights that keep activations at their size, or are as large as `fresh` says; norms
    are the identity, biases are zero."""
    if len(shape) == 1:
        return (
            torch.ones(shape)
            if key.endswith("weight") and "norm" in _owner(key)
            else torch.zeros(shape)
        )
    values = torch.randn(shape, generator=generator)
    if key.startswith(_TEXT) and _owner(key) in fresh:
        return values * fresh[_owner(key)]
    if key.endswith("token_embedding.weight"):
        return _with_spectrum(values, generator)
    if key.endswith("position_embedding.weight"):
        return 0.1 * values
    values /= math.sqrt(math.prod(shape[1:]))
    return (
        values * _MIXING if key.startswith(_TEXT) and _owner(key) in ("out_proj", "fc2") else values
    )


def _owner(key: str) -> str:
    """The module that a key belongs to; group norms of the U-Net are numbered, not named."""
    name = key.split(".")[-2]
    return (
        "norm"
        if key.endswith(("layers.0.weight", "out.0.weight", "layers.0.bias", "out.0.bias"))
        else name
    )


def _with_spectrum(values: Tensor, generator: torch.Generator) -> Tensor:
    """Rows of unit variance on average, scaled along random orthogonal directions.

    In double precision: how many threads add up the products must not show in the file.
    """
    width = values.shape[1]
    scale = torch.arange(1, width + 1, dtype=torch.float64) ** -_DECAY
    turn = torch.linalg.qr(torch.randn(width, width, generator=generator).double()).Q
    return (values.double() @ ((scale * math.sqrt(width) / scale.norm())[:, None] * turn)).float()


_LEVELS = (1, 2, 4, 4)
_ATTENTION_LEVELS = 3
_RES_BLOCKS = 2


def unet_layout(channels: int) -> Iterator[Entry]:
    """The U-Net with `channels` channels on its widest level (the real one has 320)."""
    embedding = 4 * channels
    yield from _layer("time_embed.0", embedding, channels)
    yield from _layer("time_embed.2", embedding, embedding)
    yield from _layer("input_blocks.0.0", channels, 4, 3, 3)
    skips, width, number = [channels], channels, 1
    for level, factor in enumerate(_LEVELS):
        for _ in range(_RES_BLOCKS):
            yield from _residual(f"input_blocks.{number}.0", width, factor * channels, embedding)
            width = factor * channels
            if level < _ATTENTION_LEVELS:
                yield from _transformer(f"input_blocks.{number}.1", width)
            skips.append(width)
            number += 1
        if level < len(_LEVELS) - 1:
            yield from _layer(f"input_blocks.{number}.0.op", width, width, 3, 3)
            skips.append(width)
            number += 1
    yield from _residual("middle_block.0", width, width, embedding)
    yield from _transformer("middle_block.1", width)
    yield from _residual("middle_block.2", width, width, embedding)
    yield from _upwards(channels, width, skips)
    yield from _norm("out.0", channels)
    yield from _layer("out.2", 4, channels, 3, 3)


def _upwards(channels: int, width: int, skips: list[int]) -> Iterator[Entry]:
    number = 0
    for level in reversed(range(len(_LEVELS))):
        for place in range(_RES_BLOCKS + 1):
            base = f"output_blocks.{number}"
            yield from _residual(
                f"{base}.0", width + skips.pop(), _LEVELS[level] * channels, 4 * channels
            )
            width = _LEVELS[level] * channels
            attention = level < _ATTENTION_LEVELS
            if attention:
                yield from _transformer(f"{base}.1", width)
            if level and place == _RES_BLOCKS:
                yield from _layer(f"{base}.{2 if attention else 1}.conv", width, width, 3, 3)
            number += 1


def _residual(base: str, inside: int, out: int, embedding: int) -> Iterator[Entry]:
    yield from _norm(f"{base}.in_layers.0", inside)
    yield from _layer(f"{base}.in_layers.2", out, inside, 3, 3)
    yield from _layer(f"{base}.emb_layers.1", out, embedding)
    yield from _norm(f"{base}.out_layers.0", out)
    yield from _layer(f"{base}.out_layers.3", out, out, 3, 3)
    if inside != out:
        yield from _layer(f"{base}.skip_connection", out, inside, 1, 1)


def _transformer(base: str, width: int) -> Iterator[Entry]:
    yield from _norm(f"{base}.norm", width)
    yield from _layer(f"{base}.proj_in", width, width, 1, 1)
    block = f"{base}.transformer_blocks.0"
    for attention, source in (("attn1", width), ("attn2", CONTEXT)):
        for name, columns in (("to_q", width), ("to_k", source), ("to_v", source)):
            yield f"{block}.{attention}.{name}.weight", (width, columns)
        yield from _layer(f"{block}.{attention}.to_out.0", width, width)
    yield from _layer(f"{block}.ff.net.0.proj", 8 * width, width)
    yield from _layer(f"{block}.ff.net.2", width, 4 * width)
    for name in ("norm1", "norm2", "norm3"):
        yield from _norm(f"{block}.{name}", width)
    yield from _layer(f"{base}.proj_out", width, width, 1, 1)


def autoencoder_layout(channels: int) -> Iterator[Entry]:
    """The VAE with `channels` channels on its widest level (the real one has 128)."""
    for side, blocks, step in (("encoder", 2, "down"), ("decoder", 3, "up")):
        up = side == "decoder"
        yield from _layer(f"{side}.conv_in", channels * (4 if up else 1), 4 if up else 3, 3, 3)
        width = channels * (4 if up else 1)
        for level in reversed(range(4)) if up else range(4):
            for place in range(blocks):
                base, out = f"{side}.{step}.{level}.block.{place}", _LEVELS[level] * channels
                yield from _vae_block(base, width, out)
                width = out
            if level != (0 if up else 3):
                yield from _layer(f"{side}.{step}.{level}.{step}sample.conv", width, width, 3, 3)
        middle = 4 * channels
        yield from _vae_block(f"{side}.mid.block_1", middle, middle)
        yield from _norm(f"{side}.mid.attn_1.norm", middle)
        for name in ("q", "k", "v", "proj_out"):
            yield from _layer(f"{side}.mid.attn_1.{name}", middle, middle, 1, 1)
        yield from _vae_block(f"{side}.mid.block_2", middle, middle)
        yield from _norm(f"{side}.norm_out", channels if up else middle)
        yield from _layer(f"{side}.conv_out", *((3, channels, 3, 3) if up else (8, middle, 3, 3)))
    yield from _layer("quant_conv", 8, 8, 1, 1)
    yield from _layer("post_quant_conv", 4, 4, 1, 1)


def _vae_block(base: str, inside: int, out: int) -> Iterator[Entry]:
    yield from _norm(f"{base}.norm1", inside)
    yield from _layer(f"{base}.conv1", out, inside, 3, 3)
    yield from _norm(f"{base}.norm2", out)
    yield from _layer(f"{base}.conv2", out, out, 3, 3)
    if inside != out:
        yield from _layer(f"{base}.nin_shortcut", out, inside, 1, 1)


def _layer(base: str, *shape: int) -> Iterator[Entry]:
    yield f"{base}.weight", shape
    yield f"{base}.bias", shape[:1]


def _norm(base: str, width: int) -> Iterator[Entry]:
    yield f"{base}.weight", (width,)
    yield f"{base}.bias", (width,)
