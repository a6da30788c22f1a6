"""Write an edited copy of a model: the edited tensors anew, everything else byte for byte, in
constant memory.

A diffusers folder is copied as a folder, without second copies of the unedited weights.
"""

from __future__ import annotations

import filecmp
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from torch import Tensor

from ..errors import FileError, NoSpaceError, suggestion
from ..progress import Progress
from .atomic import atomic_folder, atomic_write, check_target
from .checkpoint import COMPONENTS, Checkpoint, WeightFile
from .header import TensorEntry, encode_header
from .tensors import EDITABLE, TORCH_DTYPES, from_bytes, narrow, placed, to_bytes


@dataclass(frozen=True)
class Rewritten:
    """What `write_edited` did."""

    path: Path
    rounding: dict[str, float]
    """Key -> Frobenius norm of (stored - wanted): what the file's own dtype cost each edited
    tensor.
    """
    left_out: tuple[Path, ...]
    """Files of a folder not copied because they hold the unedited weights a second time."""


def write_edited(
    source: Checkpoint,
    target: Path | str,
    replacements: Mapping[str, Replacement],
    metadata: Mapping[str, str] | None = None,
    *,
    drop: Collection[str] = (),
    force: bool = False,
    progress: Progress | None = None,
) -> Rewritten:
    """Copy `source` to `target` with some tensors replaced (same shape, in their own dtype) and
    `metadata` merged in.

    `drop` leaves tensors out, such as `source.ema_keys()`. `progress("write", bytes done, bytes in
    all)` may raise to stop. A folder is copied as a folder.
    """
    target = Path(target)
    job = Rewriting(
        replacements, dict(metadata or {}), frozenset(drop), progress, total=source.size
    )
    job.check(source)
    check_target(target, force=force, sources=[source.path], folder=source.is_folder)
    check_space(target, source.size)
    if source.is_folder:
        left_out = copy_folder(source, target, job, force)
    else:
        left_out = []
        with atomic_write(target, force=force, sources=[source.path]) as handle:
            job.rewrite(source.parts[0], handle)
            source.refuse_changed()
    if progress:
        progress("write", source.size, source.size)
    return Rewritten(target, job.rounding, tuple(left_out))


def check_space(target: Path, needed: int) -> None:
    """Fail before the work, and before the first byte, where the disk cannot hold what is to be
    written.
    """
    there = next((folder for folder in target.absolute().parents if folder.exists()), target.parent)
    try:
        free = shutil.disk_usage(there).free
    except OSError:
        return  # the write itself will say what is wrong with the folder
    if free < needed:
        raise NoSpaceError(
            f"Cannot write {target}: it needs {needed / 1e9:.2f} GB and the disk has"
            f" {free / 1e9:.2f} GB free; choose another folder."
        )


Replacement = Tensor | Callable[[Tensor], Tensor]
"""The new value, or how to make it from the stored one: a function keeps a single layer in memory
at a time.
"""
_CHUNK = 4 << 20
_STALE_METADATA = ("modelspec.hash_sha256", "sshs_model_hash", "sshs_legacy_hash")
"""Hashes of the weights as they were; a copy must not carry them on."""


@dataclass
class Rewriting:
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
                raise FileError(
                    f"{source.path} has no tensor {key!r}{suggestion(key, source.shapes)}."
                )
        for name, text in self.metadata.items():
            if not isinstance(name, str) or not isinstance(text, str):
                raise FileError(
                    f"Metadata {name!r} is not text: safetensors headers hold strings only."
                )
        for key in self.replacements:
            if key in self.drop:
                raise FileError(f"Tensor {key} cannot be both edited and left out.")
            if source.dtypes[key] not in EDITABLE:
                kind = source.dtypes[key]
                raise FileError(
                    f"Tensor {key} is stored as {kind}, too coarse to store an edit: save a LoRA"
                    " instead."
                )

    def touches(self, part: WeightFile) -> bool:
        keys = {part.prefix + key for key in part.header.entries}
        return not keys.isdisjoint(self.replacements) or not keys.isdisjoint(self.drop)

    def rewrite(self, part: WeightFile, out: BinaryIO) -> None:
        """Header with the kept tensors at their new offsets, then their bytes in the old order."""
        kept = [
            (key, entry)
            for key, entry in part.header.by_offset()
            if part.prefix + key not in self.drop
        ]
        entries = placed({key: (entry.dtype, entry.shape) for key, entry in kept})
        old = {
            key: value for key, value in part.header.metadata.items() if key not in _STALE_METADATA
        }
        ordered = {key: entries[key] for key in part.header.entries if key in entries}
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

    def _replaced(self, part: WeightFile, key: str, entry: TensorEntry, source: BinaryIO) -> bytes:
        name = part.prefix + key
        value = self.replacements[name]
        if callable(value) and not isinstance(value, Tensor):
            stored = bytearray(b"".join(_chunks(source, entry.end - entry.begin, part.file)))
            value = value(from_bytes(stored, entry.dtype, entry.shape, name))
        if tuple(value.shape) != entry.shape:
            raise FileError(
                f"Tensor {name} has shape {entry.shape} in the file, the edit has"
                f" {tuple(value.shape)}."
            )
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


_WEIGHTS = (
    *(".safetensors", ".ckpt", ".pt", ".pth", ".bin", ".msgpack", ".h5", ".gguf"),
    *(".onnx", ".onnx_data", ".pb", ".xml", ".index.json", ".npz", ".npy", ".pkl", ".tar", ".zip"),
)
_WITH_WEIGHTS = ("vae", "image_encoder", "safety_checker")
"""Components that carry weights, which no erasure reads or edits."""
_COMPONENTS = (
    *COMPONENTS,
    *_WITH_WEIGHTS,
    *("tokenizer", "tokenizer_2", "tokenizer_3", "scheduler", "feature_extractor"),
)
_USUAL_WEIGHTS = re.compile(r"(diffusion_pytorch_model|model|pytorch_model)\b[\w.-]*")


def copy_folder(source: Checkpoint, target: Path, job: Rewriting, force: bool) -> list[Path]:
    """Write the folder; returns the files that were left out, relative to it."""
    check_folder(source.path, target)
    chosen, left_out = folder_files(source)
    parts = {part.file.relative_to(source.path): part for part in source.parts}
    with atomic_folder(target, force=force, sources=[source.path]) as temporary:
        for relative in chosen:
            part = parts.get(relative)
            copy = temporary / relative
            copy.parent.mkdir(parents=True, exist_ok=True)
            with copy.open("xb") as handle:
                if part and job.touches(part):
                    job.rewrite(part, handle)
                else:
                    job.copy(source.path / relative, handle)
                handle.flush()
                os.fsync(handle.fileno())
        source.refuse_changed()
    return left_out


def folder_files(source: Checkpoint) -> tuple[list[Path], list[Path]]:
    """Files of a folder that belong into a copy, and those that are left out, relative to it.

    Only the components that a pipeline of ours can have are copied, and of their weights only those
    that were read: variants (`.fp16`), pickles, whole checkpoints beside the components and further
    U-Nets would still know what was erased. Hidden files (caches) are not looked at.
    """
    read = {part.file.relative_to(source.path) for part in source.parts}
    read |= {part.index.relative_to(source.path) for part in source.parts if part.index}
    chosen, left_out = [], []
    for relative in _visible_files(source.path):
        weights = relative.name.lower().endswith(_WEIGHTS) and relative not in read
        component = relative.parts[0] if len(relative.parts) > 1 else ""
        usual = component in _WITH_WEIGHTS and _USUAL_WEIGHTS.fullmatch(relative.name)
        known = len(relative.parts) == 1 or (component in _COMPONENTS and len(relative.parts) == 2)
        if known and (not weights or usual):
            _refuse_leaving(source.path, relative)
            chosen.append(relative)
        else:
            left_out.append(relative)
    return chosen, left_out


def strange_files(source: Checkpoint, copy: Path) -> list[str]:
    """One sentence for each kind of file in a copied folder that copying would not have put there
    as it is.
    """
    if not source.is_folder or not copy.is_dir():
        return []
    chosen, _ = folder_files(source)
    read = {part.file.relative_to(source.path) for part in source.parts}
    there = list(_visible_files(copy, all_of_it=True))
    extra = [file.as_posix() for file in there if file not in chosen]
    changed = [
        file.as_posix()
        for file in there
        if file in chosen
        and file not in read
        and not filecmp.cmp(source.path / file, copy / file, shallow=False)
    ]
    found = (
        ("is no part of the model it was made from", extra),
        ("differs from the base", changed),
    )
    return [f"The file {', '.join(files[:5])} {what}." for what, files in found if files]


def _refuse_leaving(folder: Path, relative: Path) -> None:
    """A link leads to a file beside it, or to the blobs of the hub cache around the folder: else it
    is refused.
    """
    place, root = (folder / relative).resolve(), folder.resolve()
    if place.parent == (root / relative).parent:
        return
    snapshots = next((parent for parent in root.parents if parent.name == "snapshots"), None)
    if snapshots is None or place.parent != snapshots.parent / "blobs":
        raise FileError(
            f"{folder / relative} is a link to {place}, which is no part of this component and is"
            " not copied: put the file itself there, or remove the link."
        )


def check_folder(source: Path, target: Path) -> None:
    """Neither folder inside the other, and nothing but a model is ever replaced."""
    ours, theirs = source.resolve(), target.resolve()
    if ours in theirs.parents or theirs in ours.parents:
        raise FileError(
            f"One of output {target} and input {source} is inside the other: choose another folder"
            " for the output."
        )
    is_model = any((target / name).is_file() for name in ("model_index.json", "config.json"))
    if target.is_dir() and any(target.iterdir()) and not is_model:
        raise FileError(
            f"{target} exists and is not a diffusers folder, so it is not replaced: choose another"
            " name."
        )


_MAX_DEPTH = 2


def _visible_files(root: Path, below: Path = Path(), *, all_of_it: bool = False) -> Iterator[Path]:
    """Visible files, relative to `root`: no deeper than what is copied or has to be called left
    out.

    `all_of_it`: hidden ones, too, and to the bottom. Linked folders are entered only at the top, so
    there is no circle.
    """
    try:
        entries = sorted((root / below).iterdir())
    except OSError as error:
        raise FileError(
            f"Cannot read the folder {root / below}: {error.strerror or error}."
        ) from error
    for entry in entries:
        relative = below / entry.name
        if entry.name.startswith(".") and not all_of_it:
            continue
        if entry.is_dir():
            deep = len(relative.parts) > _MAX_DEPTH and not all_of_it
            if not deep and not (entry.is_symlink() and below.parts):
                yield from _visible_files(root, relative, all_of_it=all_of_it)
        elif entry.is_file():
            yield relative
