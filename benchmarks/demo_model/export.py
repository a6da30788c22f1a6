"""Pack the trained parts, and unpack them into a checkpoint."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from speed_erase.speed_ops.demo.packed_model import (
    AUTOENCODER,
    NAMES,
    TEXT,
    UNET,
    packed,
    unpacked,
    write_checkpoint,
)

from ..storage import load_tensors, save_tensors
from .world import PAINTERS, SUBJECTS

CHECKPOINT = "speed_demo.safetensors"
PACKED = "speed_demo_packed.safetensors"
_TOKENS = TEXT + "embeddings.token_embedding.weight"


def text_part(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The text encoder's trained tensors under the checkpoint's keys, without its token table."""
    named = {TEXT + key.removeprefix("text_model."): value for key, value in state.items()}
    return {key: value for key, value in named.items() if key != _TOKENS}


def rounded_text(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A text encoder as it is unpacked: the U-Net should learn from the rows that it will get."""
    kept = unpacked(packed(text_part(state)))
    narrow = {key.removeprefix(TEXT): value.half().float() for key, value in kept.items()}
    return state | {f"text_model.{key}": value for key, value in narrow.items()}


def pack(folder: Path) -> Path:
    """Joins the folder's three trained parts in one file, 8 bits a weight."""
    parts = text_part(load_tensors(folder / "text_encoder.safetensors"))
    for prefix, name in ((AUTOENCODER, "refined"), (UNET, "unet")):
        tensors = load_tensors(folder / f"{name}.safetensors")
        parts |= {prefix + key: value for key, value in tensors.items()}
    path = folder / PACKED
    aliases = [painter.alias for painter in PAINTERS if painter.alias]
    painters = [painter.name for painter in PAINTERS]
    names = dict(zip(NAMES, (painters, aliases, SUBJECTS), strict=True))
    save_tensors(path, packed(parts), {kind: "\n".join(own) for kind, own in names.items()})
    return path


def export(folder: Path) -> Path:
    """Packs, and writes the whole checkpoint to `folder/checkpoints/speed_demo.safetensors`."""
    path = folder / "checkpoints" / CHECKPOINT
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_checkpoint(path, pack(folder), digest="", force=True)
