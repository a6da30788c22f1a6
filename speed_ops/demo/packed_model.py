"""The demo's model: a small trained model, packed in a file of a few megabytes and unpacked on
request.

The file holds what was trained (`python -m benchmarks.demo_model`), matrices in 8 bits with a scale
per row. Everything else is computed, with the same bits on every machine: the table of tokens from
a counter, idle layers from zeros, repeated channels from the trained ones. See MODEL_CARD.md next
to the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from ..errors import FileError
from ..files.checkpoint import file_hash
from ..files.header import read_header
from ..files.tensors import kinds_of, write_tensors
from ..progress import Progress
from .autoencoder import widened
from .unet import CONTEXT, UNet

Entry = tuple[str, tuple[int, ...]]
"""Name and shape of a tensor."""
VOCABULARY = 49408
POSITIONS = 77
NAMES = ("painters", "aliases", "subjects")
"""Fields of the packed file's header: one name per line."""
FILE = Path(__file__).with_name("demo_model") / "speed_demo_packed.safetensors"
TEXT, AUTOENCODER, UNET = (
    "cond_stage_model.transformer.text_model.",
    "first_stage_model.",
    "model.diffusion_model.",
)
"""Where Stable Diffusion 1.x's checkpoints keep their three parts."""
NARROW = 2
"""How often the checkpoint repeats each trained channel of the U-Net."""
CHECKPOINT_SHA256 = "b840778c48f8fe4c2f62aa2802dbf707676ed42ba82a45ed57dedcf9b7594d34"
"""Hash of the file that `write_checkpoint` writes, on every machine."""
PACKED_SHA256 = "2f1b4a5a5c544212f633a0de952777000b5a765428bfa2309805fc1bc7653fa3"
"""Hash of the packed file."""
_TEXT_LAYERS = 12
_TOKENS = "embeddings.token_embedding.weight"
_SEED = 2503
_TOKEN_UNIT = 2.0**-13
"""Bytes become odd numbers from -255 to 255 times this: a spread of 0.018, about CLIP's, exact in
half precision.
"""
_SCALE = ".scale"
_METADATA = {
    "format": "pt",
    "modelspec.title": "SPEED demo",
    "modelspec.architecture": "stable-diffusion-v1",
    "modelspec.description": (
        "The demo model generates ten subjects in the manner of twelve invented painters."
    ),
    "modelspec.license": "Apache-2.0",
    "modelspec.resolution": "128x128",
}


def known_names() -> dict[str, tuple[str, ...]]:
    """What the model can be asked for, by kind: painters, aliases, subjects."""
    metadata = read_header(FILE).metadata
    return {kind: tuple(metadata[kind].split("\n")) for kind in NAMES}


def token_table() -> Tensor:
    """Embeddings of CLIP's tokens, (49408, 768): random, computed from integers, so the same
    everywhere.
    """
    raw = np.random.Philox(key=_SEED).random_raw(VOCABULARY * CONTEXT // 8)
    levels = raw.astype("<u8").view(np.uint8).astype(np.float32)
    return torch.from_numpy((2 * levels - 255) * np.float32(_TOKEN_UNIT)).view(VOCABULARY, CONTEXT)


def repeat_channels(narrow: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A layer's weight with each channel repeated until it has this shape: the same function.

    Outputs are repeated, inputs are divided among the copies. Norms see the same mean and size as
    before; only products of queries and keys grow, which the attention of a narrow layer allows
    for.
    """
    for axis, size in enumerate(shape):
        copies = size // narrow.shape[axis]
        narrow = narrow.repeat_interleave(copies, dim=axis)
        if axis == 1:
            narrow = narrow / copies
    return narrow


def fold_channels(full: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A layer without its repeated channels: undoes `repeat_channels`, also after an edit."""
    for axis, size in enumerate(shape):
        copies = full.unflatten(axis, (size, full.shape[axis] // size))
        full = copies.sum(axis + 1) if axis == 1 else copies.select(axis + 1, 0)
    return full


def packed(trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Trained tensors as the file holds them: matrices in 8 bits with a scale per row, all others
    in half precision.
    """
    out: dict[str, Tensor] = {}
    for key, value in trained.items():
        if value.ndim < 2 or key.startswith(AUTOENCODER):
            out[key] = value.half()
            continue
        rows = value.float().flatten(1)
        scale = (rows.abs().amax(dim=1) / 127).clamp(min=1e-12)
        out[key] = (rows / scale[:, None]).round().to(torch.int8).view(value.shape)
        out[key + _SCALE] = scale
    return out


def unpacked(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The trained tensors, single precision."""
    out = {}
    for key, value in stored.items():
        if key.endswith(_SCALE):
            continue
        out[key] = value.float()
        if key + _SCALE in stored:
            out[key] *= stored[key + _SCALE].view(-1, *[1] * (value.ndim - 1))
    return out


def iter_tensors(trained: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the checkpoint with its key, from the trained ones: half precision, scalars
    in single.
    """
    for name, shape in text_encoder_layout(_TEXT_LAYERS):
        if name == _TOKENS:
            value = token_table()
        elif TEXT + name in trained:
            value = repeat_channels(trained[TEXT + name], shape)
        else:  # a layer that passes its input on
            is_scale = "layer_norm" in name and name.endswith("weight")
            value = torch.ones(shape) if is_scale else torch.zeros(shape)
        yield TEXT + name, value.half()
    autoencoder = {
        key.removeprefix(AUTOENCODER): value
        for key, value in trained.items()
        if key.startswith(AUTOENCODER)
    }
    for name, value in widened(autoencoder):
        yield AUTOENCODER + name, value.half() if value.ndim else value
    for name, shape in unet_shapes().items():
        yield UNET + name, repeat_channels(trained[UNET + name], shape).half()


def unet_shapes() -> dict[str, tuple[int, ...]]:
    """Shapes of the checkpoint's U-Net, by name."""
    with torch.device("meta"):
        return {name: tuple(value.shape) for name, value in UNet().state_dict().items()}


def write_checkpoint(
    path: Path,
    file: Path = FILE,
    *,
    digest: str = PACKED_SHA256,
    force: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Writes the checkpoint, the same bytes every time. Refuses a damaged packed file.

    Args:
        path: Where to write it.
        file: The packed model.
        digest: Its sha256; empty for one that was just made.
        force: Whether to overwrite a file.
        progress: Told the bytes written.
    """
    if digest and file_hash(file) != digest:
        raise FileError(f"{file} is damaged. Install this package again.")
    tensors = dict(iter_tensors(unpacked(load_file(file))))
    write_tensors(
        path,
        kinds_of(tensors),
        tensors.values(),
        _METADATA,
        force=force,
        progress=progress,
        stage="demo",
    )
    return path


def text_encoder_layout(layers: int, inner: int = 4 * CONTEXT) -> Iterator[Entry]:
    """CLIP-L's text model with `layers` blocks (the real one has 12)."""
    yield "embeddings.token_embedding.weight", (VOCABULARY, CONTEXT)
    yield "embeddings.position_embedding.weight", (POSITIONS, CONTEXT)
    for number in range(layers):
        base = f"encoder.layers.{number}"
        for name in ("k_proj", "v_proj", "q_proj", "out_proj"):
            yield from _pair(f"{base}.self_attn.{name}", CONTEXT, CONTEXT)
        yield from _pair(f"{base}.layer_norm1", CONTEXT)
        yield from _pair(f"{base}.mlp.fc1", inner, CONTEXT)
        yield from _pair(f"{base}.mlp.fc2", CONTEXT, inner)
        yield from _pair(f"{base}.layer_norm2", CONTEXT)
    yield from _pair("final_layer_norm", CONTEXT)


def _pair(base: str, *shape: int) -> Iterator[Entry]:
    """Weight and bias of a layer or a norm."""
    yield f"{base}.weight", shape
    yield f"{base}.bias", shape[:1]
