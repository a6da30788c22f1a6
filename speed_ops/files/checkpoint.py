"""A model on disk, single file or diffusers folder: its keys at once, its tensors one by one when asked for."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ..errors import FileError
from .folders import Part, folder_parts
from .header import TensorEntry, read_header
from .nearest import suggestion
from .tensor_bytes import EDITABLE, from_bytes


@dataclass(frozen=True)
class Checkpoint:
    """Nothing is held open and no weight is loaded: only headers. Make one with `Checkpoint.open`.

    Keys are those of the file; of a folder, `component/key` (`unet/conv_in.weight`).
    """

    path: Path
    parts: tuple[Part, ...]
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
    """Key -> type as the file names it: F32, F16, BF16, F8_E4M3, ..."""
    metadata: dict[str, str]
    """The header's strings; of a folder, those of its first file."""

    @classmethod
    def open(cls, path: Path | str) -> Checkpoint:
        """Read and check the header, or all headers of a folder."""
        path = Path(path)
        parts = folder_parts(path) if os.path.isdir(path) else [Part(path, "", read_header(path))]
        entries: dict[str, TensorEntry] = {}
        for part in parts:
            for key, entry in part.header.entries.items():
                if part.prefix + key in entries:
                    raise FileError(f"{path} holds the tensor {part.prefix + key} twice: download it again.")
                entries[part.prefix + key] = entry
        shapes = {key: entry.shape for key, entry in entries.items()}
        dtypes = {key: entry.dtype for key, entry in entries.items()}
        return cls(path, tuple(parts), shapes, dtypes, dict(parts[0].header.metadata))

    @property
    def is_folder(self) -> bool:
        return self.parts[0].file != self.path

    @property
    def size(self) -> int:
        """Bytes of all weight files together."""
        return sum(part.header.data_start + part.header.data_size for part in self.parts)

    def keys(self) -> Iterable[str]:
        return self.shapes.keys()

    def __getitem__(self, key: str) -> Tensor:
        return self.read(key)

    def read(self, key: str) -> Tensor:
        """One tensor in its stored dtype, in memory of its own."""
        part = self.part_of(key)
        entry = part.header.entries[key[len(part.prefix) :]]
        content = bytearray(entry.end - entry.begin)
        try:
            with part.file.open("rb") as handle:
                handle.seek(part.header.data_start + entry.begin)
                count = handle.readinto(content)
        except OSError as error:
            raise FileError(f"Cannot read {part.file}: {error.strerror or error}.") from error
        if count != len(content):
            raise FileError(f"{part.file} became shorter while it was read.")
        return from_bytes(content, entry.dtype, entry.shape, key)

    def part_of(self, key: str) -> Part:
        """The file that holds `key`."""
        for part in self.parts:
            if key.startswith(part.prefix) and key[len(part.prefix) :] in part.header.entries:
                return part
        raise FileError(f"{self.path} has no tensor {key!r}{suggestion(key, self.shapes)}.")

    def low_precision_keys(self, keys: Iterable[str]) -> list[str]:
        """Those of `keys` that are stored in fp8 or packed still smaller, where an edit cannot be baked in."""
        return [key for key in keys if self.dtypes[key] not in EDITABLE]

    def ema_keys(self) -> list[str]:
        """The second, averaged copy of the weights that training leaves in some files; an edit does not reach it."""
        return [key for key in self.shapes if key.startswith("model_ema.")]
