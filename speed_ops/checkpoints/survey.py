"""What the headers of a model tell a fleet before any work: its size, memory and text encoder."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..encoders.tower import RESIDENT_BYTES
from .encoder_files import EncoderFiles
from .source import ModelSource
from .text_setup import TextSetup


@dataclass(frozen=True)
class Survey:
    """What the headers of one model tell before any work."""

    memory: int
    """Bytes that a worker needs for it."""
    encoder: str
    """The same for models that have the same text encoder, as far as samples tell."""
    size: int
    """Bytes of the model."""
    family: str
    """The family's title."""


ReadBytes = Callable[[Path, int, int], bytes]
"""Bytes of a file from one place to another."""


def survey(path: Path, text: TextSetup, read: ReadBytes, label: str = "") -> Survey:
    """Reads headers, and through `read` a few kilobytes of the text encoder.

    Args:
        path: The model, or a local file of the same size with its header.
        text: How text becomes embeddings.
        read: Reads bytes of a file.
        label: URL or path of the model, for messages.
    """
    source = ModelSource.open(path, label)
    files = source.encoder_files(text.text_encoders)
    return Survey(
        memory_for(files), sample_of(files, read), source.checkpoint.size, source.architecture.title
    )


BASE_MEMORY = 1_000_000_000
"""Bytes a worker takes for any model: Python, torch and transformers, rows, and one layer at a
time. Generous: with it SDXL asks for 2.6 GB, and its measured peak is 1.45 GB
(docs/benchmarks.md)."""
LARGE_ENCODER = 6
"""A text encoder that is not held whole takes its size in float32 divided by this, at most (see
`RESIDENT_BYTES`).
"""


def memory_for(files: EncoderFiles) -> int:
    """Bytes that cleaning takes. The model itself is read and written layer by layer, and counts
    for little.
    """
    total = BASE_MEMORY
    for row in files.available:
        inside = [
            shape for name, shape in files.shapes.items() if name.startswith(f"{row.folder}/")
        ]
        size = 4 * sum(math.prod(shape) for shape in inside)
        total += size if size <= RESIDENT_BYTES else max(RESIDENT_BYTES, size // LARGE_ENCODER)
    return total


SAMPLES = 6
SAMPLE_BYTES = 4096
"""How many of an encoder's matrices are sampled, and how many bytes of each: training or merging
changes all of them.
"""


def sample_of(files: EncoderFiles, read: ReadBytes) -> str:
    """Hash of the layout of text encoders and of some of their weights."""
    total = hashlib.sha256()
    for name in sorted(files.shapes):
        total.update(f"{name} {files.shapes[name]}\n".encode())
    names = sorted(name for name, shape in files.shapes.items() if len(shape) == 2)
    for name in names[:: max(1, len(names) // SAMPLES)]:
        holder, key = files.locations[name]
        shard, start, stop = holder.span(key)
        total.update(read(shard.file, start, min(start + SAMPLE_BYTES, stop)))
    return total.hexdigest()
