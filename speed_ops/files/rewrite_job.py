"""One rewriting: which tensors change, and the stream that copies a file around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from torch import Tensor

from ..errors import FileError
from .checkpoint import Checkpoint
from .folders import Part
from .header import TensorEntry, encode_header
from .nearest import suggestion
from .tensor_bytes import EDITABLE, TORCH_DTYPES, from_bytes, narrow, to_bytes

Replacement = Tensor | Callable[[Tensor], Tensor]
"""The new value, or how to make it from the stored one: a function keeps a single layer in memory at a time."""
Progress = Callable[[str, int, int], None]

_CHUNK = 4 << 20
_STALE_METADATA = ("modelspec.hash_sha256", "sshs_model_hash", "sshs_legacy_hash")
"""Hashes of the weights as they were; a copy must not carry them on."""


@dataclass
class Job:
    """What changes between source and copy, and how far the copying is."""

    replacements: Mapping[str, Replacement]
    metadata: dict[str, str]
    drop: frozenset[str]
    progress: Progress | None
    total: int
    done: int = 0
    rounding: dict[str, float] = field(default_factory=dict)

    def check(self, source: Checkpoint) -> None:
        """Refuse what cannot be done before the first byte is written."""
        for key in (*self.replacements, *self.drop):
            if key not in source.shapes:
                raise FileError(f"{source.path} has no tensor {key!r}{suggestion(key, source.shapes)}.")
        for name, text in self.metadata.items():
            if not isinstance(name, str) or not isinstance(text, str):
                raise FileError(f"Metadata {name!r} is not text: safetensors headers hold strings only.")
        for key in self.replacements:
            if key in self.drop:
                raise FileError(f"Tensor {key} cannot be both edited and left out.")
            if source.dtypes[key] not in EDITABLE:
                kind = source.dtypes[key]
                raise FileError(
                    f"Tensor {key} is stored as {kind}: an edit would drown in rounding; save a LoRA instead."
                )

    def touches(self, part: Part) -> bool:
        keys = {part.prefix + key for key in part.header.entries}
        return not keys.isdisjoint(self.replacements) or not keys.isdisjoint(self.drop)

    def rewrite(self, part: Part, out: BinaryIO) -> None:
        """Header with the kept tensors at their new offsets, then their bytes in the old order."""
        kept = [(key, entry) for key, entry in part.header.by_offset() if part.prefix + key not in self.drop]
        placed: dict[str, TensorEntry] = {}
        position = 0
        for key, entry in kept:
            placed[key] = TensorEntry(entry.dtype, entry.shape, position, position + entry.end - entry.begin)
            position = placed[key].end
        old = {key: value for key, value in part.header.metadata.items() if key not in _STALE_METADATA}
        ordered = {key: placed[key] for key in part.header.entries if key in placed}
        out.write(encode_header(ordered, {**old, **self.metadata}))
        try:
            source = part.file.open("rb")
        except OSError as error:
            raise FileError(f"Cannot read {part.file}: {error.strerror or error}.") from error
        with source:
            for key, entry in kept:
                source.seek(part.header.data_start + entry.begin)
                if part.prefix + key in self.replacements:
                    out.write(self._replaced(part, key, entry, source))
                else:
                    for chunk in _chunks(source, entry.end - entry.begin, part.file):
                        out.write(chunk)
                        self._advance(len(chunk))

    def _replaced(self, part: Part, key: str, entry: TensorEntry, source: BinaryIO) -> bytes:
        name = part.prefix + key
        value = self.replacements[name]
        if callable(value) and not isinstance(value, Tensor):
            stored = bytearray(b"".join(_chunks(source, entry.end - entry.begin, part.file)))
            value = value(from_bytes(stored, entry.dtype, entry.shape, name))
        if tuple(value.shape) != entry.shape:
            raise FileError(f"Tensor {name} has shape {entry.shape} in the file, the edit has {tuple(value.shape)}.")
        rounded = narrow(value, TORCH_DTYPES[entry.dtype], f"The edited tensor {name}")
        self.rounding[name] = float((rounded.double() - value.detach().cpu().double()).norm())
        self._advance(entry.end - entry.begin)
        return to_bytes(rounded)

    def _advance(self, count: int) -> None:
        self.done += count
        if self.progress:
            self.progress("write", min(self.done, self.total), self.total)

    def copy(self, file: Path, out: BinaryIO) -> None:
        """A whole file as it is."""
        try:
            source = file.open("rb")
        except OSError as error:
            raise FileError(f"Cannot read {file}: {error.strerror or error}.") from error
        with source:
            while chunk := source.read(_CHUNK):
                out.write(chunk)
                self._advance(len(chunk))


def _chunks(source: BinaryIO, size: int, file: Path) -> Iterator[bytes]:
    while size > 0:
        try:
            chunk = source.read(min(_CHUNK, size))
        except OSError as error:
            raise FileError(f"Cannot read {file}: {error.strerror or error}.") from error
        if not chunk:
            raise FileError(f"{file} became shorter while it was read.")
        yield chunk
        size -= len(chunk)
