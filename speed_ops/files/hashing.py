"""Hashes that tell one model from another: of whole files, and of just the tensors an erasure depends on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from torch import Tensor

from ..architectures import Architecture, LayerKey, encoder_keys
from ..errors import FileError
from .checkpoint import Checkpoint
from .tensor_bytes import to_bytes
from .text_encoders import EncoderFiles

_CHUNK = 4 << 20


def file_hash(path: Path | str, progress: Callable[[str, int, int], None] | None = None) -> str:
    """sha256 of a file's bytes, the number other programs show for a model."""
    digest = hashlib.sha256()
    try:
        total = Path(path).stat().st_size
        done = 0
        with Path(path).open("rb") as handle:
            while chunk := handle.read(_CHUNK):
                digest.update(chunk)
                done += len(chunk)
                if progress:
                    progress("hash", done, total)
    except OSError as error:
        raise FileError(f"Cannot read {path}: {error.strerror or error}.") from error
    return digest.hexdigest()


def checkpoint_hash(checkpoint: Checkpoint, progress: Callable[[str, int, int], None] | None = None) -> str:
    """`file_hash` of a single file; of a folder, one hash over those of its weight files."""
    if not checkpoint.is_folder:
        return file_hash(checkpoint.path, progress)
    lines = [
        f"{part.file.relative_to(checkpoint.path).as_posix()} {file_hash(part.file, progress)}"
        for part in checkpoint.parts
    ]
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def tensors_hash(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """sha256 over names, dtypes, shapes and bytes, in the order given; one tensor in memory at a time."""
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(to_bytes(tensor))
    return digest.hexdigest()


def layers_hash(checkpoint: Checkpoint, layers: Sequence[LayerKey]) -> str:
    """Of the layers an erasure edits: the same for the same weights in any file layout."""
    return tensors_hash((layer.canonical, checkpoint.read(layer.file_key)) for layer in layers)


def encoder_hash(tensors: Checkpoint | EncoderFiles, architecture: Architecture) -> str:
    """Of the text encoders in a file, or in the files that hold them; empty when there are none."""
    named = [
        (f"{encoder.name}.{name}", key)
        for encoder in architecture.encoders
        for name, key in sorted(encoder_keys(encoder, tensors.keys())[1].items())
    ]
    return tensors_hash((name, tensors[key]) for name, key in named) if named else ""
