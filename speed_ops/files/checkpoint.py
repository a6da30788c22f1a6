"""A model on disk, single file or diffusers folder: its keys and hash, and its tensors one by one
when asked for.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ..errors import FileError, suggestion
from ..progress import Progress
from .header import PICKLE_SUFFIXES, Header, TensorEntry, pickle_refusal, read_header, stamp_of
from .inside import path_inside
from .schema import chunks, load_json, read_bounded, reading
from .tensors import from_bytes

COMPONENTS = ("unet", "transformer", "prior", "text_encoder", "text_encoder_2", "text_encoder_3")
"""Components whose keys are read: what distinguishes families, and the text encoders."""
_STEM = "(diffusion_pytorch_model|model)"
_CHOICES = (
    rf"{_STEM}\.safetensors",
    rf"{_STEM}\.safetensors\.index\.json",
    rf"{_STEM}\.\w+\.safetensors",
    rf"{_STEM}\..*index.*\.json",
)
"""Whole files before sharded ones, plain names before variants such as `.fp16`."""
_INDEX_LIMIT = 20_000_000


@dataclass(frozen=True)
class WeightFile:
    """One safetensors file and what its keys are called in the whole: `prefix` + key."""

    file: Path
    prefix: str
    header: Header
    label: str
    """Its path or URL, for messages."""
    index: Path | None = None
    """The index file that names it, when the component is sharded."""


def _folder_parts(folder: Path, label: str) -> list[WeightFile]:
    """The weight files of a pipeline folder, or of one component's folder (keys then without
    prefix).
    """
    parts: list[WeightFile] = []
    for component in COMPONENTS:
        if (folder / component).is_dir():
            parts += _component(folder / component, f"{component}/", f"{label}/{component}")
    if not parts:
        parts = _component(folder, "", label)
    if not parts:
        raise FileError(
            f"{label} holds no model: a diffusers folder has a folder `unet` with safetensors"
            " files in it."
        )
    return parts


def _component(folder: Path, prefix: str, label: str) -> list[WeightFile]:
    """None, one, or the shards of one index."""
    with reading(f"the folder {label}"):
        names = sorted(entry.name for entry in folder.iterdir() if entry.is_file())
    for pattern in _CHOICES:
        for name in names:
            if re.fullmatch(pattern, name):
                file, file_label = folder / name, f"{label}/{name}"
                if file.suffix == ".json":
                    return _sharded(file, prefix, file_label)
                return [WeightFile(file, prefix, read_header(file, file_label), file_label)]
    pickles = [name for name in names if name.lower().endswith(PICKLE_SUFFIXES)]
    if pickles and prefix in ("unet/", ""):
        raise pickle_refusal(f"{label}/{pickles[0]}")
    return []


def _sharded(index: Path, prefix: str, label: str) -> list[WeightFile]:
    mapping = load_json(read_bounded(index, _INDEX_LIMIT, label), label, _INDEX_LIMIT)
    weight_map = mapping.get("weight_map") if isinstance(mapping, dict) else None
    if not isinstance(weight_map, dict) or not all(
        isinstance(name, str) for name in weight_map.values()
    ):
        raise FileError(
            f"{label} is not an index of weight files: it has no `weight_map` from keys to file"
            " names."
        )
    parts = []
    for name in sorted(set(weight_map.values())):
        # The hub cache has links here, to a folder of its own.
        file = path_inside(index.parent, name, follow_links=True)
        if file.parent != index.parent or file.suffix != ".safetensors":
            raise FileError(
                f"{label} names the file {name[:100]!r}, which is not a safetensors file next to"
                " it. Download them again."
            )
        file_label = f"{label.rpartition('/')[0]}/{name}"
        header = read_header(file, file_label)
        if header.entries.keys() != {key for key in weight_map if weight_map[key] == name}:
            raise FileError(
                f"{label} and {name} disagree about which tensors it holds. Download them again."
            )
        parts.append(WeightFile(file, prefix, header, file_label, index))
    return parts


@dataclass(frozen=True)
class Checkpoint:
    """Nothing is held open and no weight is loaded: only headers. Make one with `Checkpoint.open`.

    Keys are those of the file; of a folder, `component/key` (`unet/conv_in.weight`).
    """

    path: Path
    parts: tuple[WeightFile, ...]
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
    """Key -> type as the file names it: F32, F16, BF16, F8_E4M3, ..."""
    metadata: dict[str, str]
    """The header's strings; of a folder, those of its first file."""
    label: str
    """Its path or URL, for messages."""

    @classmethod
    def open(cls, path: Path | str, label: str = "") -> Checkpoint:
        """Reads and checks the header, or all headers of a folder. Messages call it `label`, such
        as the URL that it was fetched from, or by its path.
        """
        path, label = Path(path), label or str(path)
        if os.path.isdir(path):
            parts = _folder_parts(path, label)
        else:
            parts = [WeightFile(path, "", read_header(path, label), label)]
        entries: dict[str, TensorEntry] = {}
        for shard in parts:
            for key, entry in shard.header.entries.items():
                if shard.prefix + key in entries:
                    raise FileError(
                        f"{label} holds the tensor {shard.prefix + key} twice. Download it again."
                    )
                entries[shard.prefix + key] = entry
        shapes = {key: entry.shape for key, entry in entries.items()}
        dtypes = {key: entry.dtype for key, entry in entries.items()}
        return cls(path, tuple(parts), shapes, dtypes, dict(parts[0].header.metadata), label)

    @property
    def is_folder(self) -> bool:
        return self.parts[0].file != self.path

    @property
    def size(self) -> int:
        """Bytes of all weight files together."""
        return sum(shard.header.data_start + shard.header.data_size for shard in self.parts)

    def keys(self) -> Iterable[str]:
        return self.shapes.keys()

    def __getitem__(self, key: str) -> Tensor:
        return self.read(key)

    def read(self, key: str) -> Tensor:
        """One tensor in its stored dtype, in memory of its own."""
        shard, start, stop = self.span(key)
        content = bytearray(stop - start)
        with reading(shard.label), shard.file.open("rb") as handle:
            handle.seek(start)
            count = handle.readinto(content)
        if count != len(content):
            raise FileError(f"{shard.label} became shorter while it was read.")
        return from_bytes(content, self.dtypes[key], self.shapes[key], key)

    def refuse_changed(self) -> None:
        """Raises if a file is no longer the one whose header was read."""
        for shard in self.parts:
            try:
                same = stamp_of(shard.file.stat()) == shard.header.stamp
            except OSError:
                same = False
            if not same:
                raise FileError(
                    f"{shard.label} was changed or replaced while it was read, so nothing was"
                    " written. Run again when nothing else writes to it."
                )

    def span(self, key: str) -> tuple[WeightFile, int, int]:
        """The file that holds `key`, and the offsets of the tensor in it."""
        for shard in self.parts:
            entry = shard.header.entries.get(key.removeprefix(shard.prefix))
            if entry is not None and key.startswith(shard.prefix):
                start = shard.header.data_start
                return shard, start + entry.begin, start + entry.end
        raise FileError(f"{self.label} has no tensor {key!r}{suggestion(key, self.shapes)}.")

    def sha256(self, progress: Progress | None = None) -> str:
        """`file_hash` of a single file; for a folder, one hash over those of its weight files."""
        if not self.is_folder:
            return file_hash(self.path, progress)
        lines = [
            f"{shard.file.relative_to(self.path).as_posix()} {file_hash(shard.file, progress)}"
            for shard in self.parts
        ]
        return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()

    def same_bytes(self, key: str, other: Checkpoint, name: str) -> bool:
        """Whether a tensor of the same type and shape has the same bytes in another checkpoint.

        Args:
            key: The tensor's key here.
            other: The other checkpoint.
            name: Its key there.
        """
        contents = []
        for checkpoint, own in ((self, key), (other, name)):
            shard, start, stop = checkpoint.span(own)
            contents.append(chunks(shard.file, shard.label, start, stop))
        return all(ours == theirs for ours, theirs in zip(*contents, strict=True))

    def ema_keys(self) -> list[str]:
        """The averaged second copy that training leaves in some files; no edit reaches it."""
        return [key for key in self.shapes if key.startswith("model_ema.")]


def file_hash(path: Path | str, progress: Progress | None = None) -> str:
    """sha256 of a file's bytes, the number other programs show for a model."""
    digest, path, done = hashlib.sha256(), Path(path), 0
    with reading(path):
        total = path.stat().st_size
    for chunk in chunks(path, path, 0, total):
        digest.update(chunk)
        done += len(chunk)
        if progress:
            progress("hash", done, total)
    return digest.hexdigest()
