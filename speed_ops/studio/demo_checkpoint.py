"""The demo's checkpoint: Stable Diffusion 1.x's keys, the real width and vocabulary of its text, random values.

It draws nothing. Its text encoder is a random transformer over token embeddings whose spectrum decays as in a trained
one, so names share most directions and differ in some: there is something to erase, something to harm, and a null space
between them. What the certificate says about it is measured like on any model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from ..files.atomic import atomic_write
from ..files.header import encode_header
from ..files.header_text import TensorEntry
from ..files.tensor_bytes import to_bytes
from . import demo_layout as layout

CHANNELS = 64
TEXT_LAYERS = 2
VAE_CHANNELS = 16
SEED = 2503
_DECAY = 0.5
"""Token embeddings' standard deviation along the k-th direction falls like k to minus this."""
_MIXING = 0.3
"""Scale of what each block adds: small enough that a token stays recognisable in its row, as in a trained encoder."""
_TEXT = "cond_stage_model.transformer.text_model."
_METADATA = {
    "format": "pt",
    "modelspec.title": "SPEED demo (random weights)",
    "modelspec.architecture": "stable-diffusion-v1",
}


def write_demo_checkpoint(
    path: Path,
    *,
    channels: int = CHANNELS,
    text_layers: int = TEXT_LAYERS,
    force: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> Path:
    """Writes the file, half precision, the same bytes every time; one tensor in memory at a time."""
    shapes = dict(_shapes(channels, text_layers))
    entries: dict[str, TensorEntry] = {}
    position = 0
    for key, shape in shapes.items():
        size = 2 * math.prod(shape)
        entries[key] = TensorEntry("F16", shape, position, position + size)
        position += size
    generator = torch.Generator().manual_seed(SEED)
    with atomic_write(path, force=force) as handle:
        handle.write(encode_header(entries, _METADATA))
        for key, shape in shapes.items():
            handle.write(to_bytes(_value(key, shape, generator).half()))
            if progress:
                progress("demo", entries[key].end, position)
    return path


def _shapes(channels: int, text_layers: int) -> Iterator[layout.Entry]:
    for prefix, entries in (
        (_TEXT, layout.text_encoder(text_layers)),
        ("first_stage_model.", layout.autoencoder(VAE_CHANNELS)),
        ("model.diffusion_model.", layout.unet(channels)),
    ):
        for name, shape in entries:
            yield prefix + name, shape


def _value(key: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Random weights that keep activations at their size; norms are the identity, biases are zero."""
    if len(shape) == 1:
        return torch.ones(shape) if key.endswith("weight") and "norm" in _owner(key) else torch.zeros(shape)
    values = torch.randn(shape, generator=generator)
    if key.endswith("token_embedding.weight"):
        return _with_spectrum(values, generator)
    if key.endswith("position_embedding.weight"):
        return 0.1 * values
    values /= math.sqrt(math.prod(shape[1:]))
    return values * _MIXING if key.startswith(_TEXT) and _owner(key) in ("out_proj", "fc2") else values


def _owner(key: str) -> str:
    """The module that a key belongs to; group norms of the U-Net are numbered, not named."""
    name = key.split(".")[-2]
    return "norm" if key.endswith(("layers.0.weight", "out.0.weight", "layers.0.bias", "out.0.bias")) else name


def _with_spectrum(values: Tensor, generator: torch.Generator) -> Tensor:
    """Rows of unit variance on average, scaled along random orthogonal directions.

    In double precision: how many threads add up the products must not show in the file.
    """
    width = values.shape[1]
    scale = torch.arange(1, width + 1, dtype=torch.float64) ** -_DECAY
    turn = torch.linalg.qr(torch.randn(width, width, generator=generator).double()).Q
    return (values.double() @ ((scale * math.sqrt(width) / scale.norm())[:, None] * turn)).float()
