"""Writes an edited copy of a model in constant memory: everything that is not edited is copied byte
for byte.

A diffusers folder is copied as a folder, without second copies of the unedited weights.
"""

from __future__ import annotations

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
from .atomic import all_or_none, atomic_write, check_target
from .checkpoint import COMPONENTS, Checkpoint, WeightFile
from .header import TensorEntry, encode_header
from .schema import chunks, reading
from .tensors import EDITABLE, TORCH_DTYPES, from_bytes, narrow, placed, to_bytes

Replacement = Tensor | Callable[[Tensor], Tensor]
"""The new value, or how to make it from the stored one: a function keeps a single layer in memory
at a time.
"""
_STALE_METADATA = ("modelspec.hash_sha256", "sshs_model_hash", "sshs_legacy_hash")
"""Hashes of the weights as they were; a copy must not carry them on."""
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
_MAX_DEPTH = 2


def write_edited(
    source: Checkpoint,
    target: Path | str,
    replacements: Mapping[str, Replacement],
    metadata: Mapping[str, str] | None = None,
    *,
    drop: Collection[str] = (),
    drop_metadata: Callable[[str, str], bool] = lambda name, value: False,
    force: bool = False,
    progress: Progress | None = None,
) -> tuple[dict[str, float], list[Path]]:
    """Copies a model with some tensors replaced; a folder is copied as a folder.

    Args:
        source: The model.
        target: Where the copy goes.
        replacements: Key -> new value, of the same shape; it is stored in the tensor's own dtype.
        metadata: Added to the header.
        drop: Tensors to leave out, such as `source.ema_keys()`.
        drop_metadata: Whether to leave out an entry of the source's metadata.
        force: Replace a target that exists.
        progress: Called with ("write", bytes done, all bytes); it may raise to stop.

    Returns:
        Key -> Frobenius norm of (stored - exact), what the file's own dtype cost each edited
        tensor; and the files of a folder that were not copied.
    """
    target, values = Path(target), dict(metadata or {})
    job = _Rewriting(
        source, replacements, values, frozenset(drop), drop_metadata, progress, source.size
    )
    job.check()
    check_target(target, force=force, sources=[source.path], folder=source.is_folder)
    check_space(target, source.size)
    left_out: list[Path] = []
    if source.is_folder:
        left_out = _copy_folder(job, target, force)
    else:
        with atomic_write(target, force=force, sources=[source.path]) as handle:
            job.rewrite(source.parts[0], handle)
            source.refuse_changed()
    if progress:
        progress("write", source.size, source.size)
    return job.rounding, left_out


def check_space(target: Path, needed: int) -> None:
    """Refuses, before the first byte, what the disk cannot hold."""
    existing = next(
        (folder for folder in target.absolute().parents if folder.exists()), target.parent
    )
    try:
        free = shutil.disk_usage(existing).free
    except OSError:
        return  # the write itself will report what is wrong with the folder
    if free < needed:
        raise NoSpaceError(
            f"Cannot write {target}: it needs {needed / 1e9:.2f} GB and the disk has"
            f" {free / 1e9:.2f} GB free. Choose another folder."
        )


@dataclass
class _Rewriting:
    """What changes between source and copy, and how far the copying is."""

    source: Checkpoint
    replacements: Mapping[str, Replacement]
    metadata: dict[str, str]
    drop: frozenset[str]
    drop_metadata: Callable[[str, str], bool]
    progress: Progress | None
    total: int
    done: int = 0
    rounding: dict[str, float] = field(default_factory=dict)

    def check(self) -> None:
        """Refuses what cannot be done before the first byte is written."""
        shapes, dtypes = self.source.shapes, self.source.dtypes
        for key in (*self.replacements, *self.drop):
            if key not in shapes:
                raise FileError(
                    f"{self.source.label} has no tensor {key!r}{suggestion(key, shapes)}."
                )
        for name, text in self.metadata.items():
            if not isinstance(name, str) or not isinstance(text, str):
                raise FileError(
                    f"Metadata {name!r} is not text: safetensors headers hold strings only."
                )
        for key in self.replacements:
            if key in self.drop:
                raise FileError(f"Tensor {key} cannot be both edited and left out.")
            if dtypes[key] not in EDITABLE:
                raise FileError(
                    f"Tensor {key} is stored as {dtypes[key]}, too coarse to store an edit. Save a"
                    " LoRA instead."
                )

    def touches(self, shard: WeightFile) -> bool:
        """Whether a file changes; the others are copied byte for byte."""
        keys = {shard.prefix + key for key in shard.header.entries}
        return (
            not keys.isdisjoint(self.replacements)
            or not keys.isdisjoint(self.drop)
            or any(self.drop_metadata(*entry) for entry in shard.header.metadata.items())
        )

    def rewrite(self, shard: WeightFile, out: BinaryIO) -> None:
        """Header with the kept tensors at their new offsets, then their bytes in the old order."""
        retained = {
            key: entry
            for key, entry in shard.header.by_offset()
            if shard.prefix + key not in self.drop
        }
        entries = placed({key: (entry.dtype, entry.shape) for key, entry in retained.items()})
        inherited = {
            name: value
            for name, value in shard.header.metadata.items()
            if name not in _STALE_METADATA and not self.drop_metadata(name, value)
        }
        ordered = {key: entries[key] for key in shard.header.entries if key in entries}
        out.write(encode_header(ordered, {**inherited, **self.metadata}))
        for key, entry in retained.items():
            start, stop = (shard.header.data_start + offset for offset in (entry.begin, entry.end))
            stored = chunks(shard.file, shard.label, start, stop)
            if shard.prefix + key in self.replacements:
                stored = self._replaced(shard.prefix + key, entry, stored)
            self.write(stored, out)

    def _replaced(self, name: str, entry: TensorEntry, stored: Iterator[bytes]) -> Iterator[bytes]:
        value = self.replacements[name]
        if not isinstance(value, Tensor):
            content = bytearray(b"".join(stored))
            value = value(from_bytes(content, entry.dtype, entry.shape, name))
        if tuple(value.shape) != entry.shape:
            raise FileError(
                f"Tensor {name} has shape {entry.shape} in the file, the edit has"
                f" {tuple(value.shape)}."
            )
        rounded = narrow(value, TORCH_DTYPES[entry.dtype], f"The edited tensor {name}")
        self.rounding[name] = float((rounded.double() - value.detach().cpu().double()).norm())
        yield to_bytes(rounded)

    def write(self, content: Iterator[bytes], out: BinaryIO) -> None:
        for chunk in content:
            out.write(chunk)
            self.done += len(chunk)
            if self.progress:
                self.progress("write", min(self.done, self.total), self.total)


def _copy_folder(job: _Rewriting, target: Path, force: bool) -> list[Path]:
    """Writes the folder; returns the files that were left out, relative to it."""
    source = job.source
    check_folder(source.path, target)
    selected, left_out = folder_files(source)
    shards = {shard.file.relative_to(source.path): shard for shard in source.parts}
    replaceable = [target] if force else []
    with all_or_none([target], replaceable=replaceable, sources=[source.path]) as temporary:
        for relative in selected:
            shard, copy = shards.get(relative), temporary(target) / relative
            copy.parent.mkdir(parents=True, exist_ok=True)
            with copy.open("xb") as handle:
                if shard and job.touches(shard):
                    job.rewrite(shard, handle)
                else:
                    job.write(chunks(source.path / relative, source.path / relative), handle)
                handle.flush()
                os.fsync(handle.fileno())
        source.refuse_changed()
    return left_out


def folder_files(source: Checkpoint) -> tuple[list[Path], list[Path]]:
    """Files of a folder that belong into a copy, and those that are left out, relative to it.

    Only the components that a pipeline of ours can have are copied, and only those of their weights
    that were read: variants (`.fp16`), pickles, whole checkpoints next to the components and
    further U-Nets would still know what was erased. Hidden files (caches) are not looked at.
    """
    read = weight_files(source)
    selected, left_out = [], []
    for relative in visible_files(source.path):
        weights = relative.name.lower().endswith(_WEIGHTS) and relative not in read
        component = relative.parts[0] if len(relative.parts) > 1 else ""
        usual = component in _WITH_WEIGHTS and _USUAL_WEIGHTS.fullmatch(relative.name)
        expected = not component or (component in _COMPONENTS and len(relative.parts) == 2)
        if expected and (not weights or usual):
            refuse_leaving(source.path, relative)
            selected.append(relative)
        else:
            left_out.append(relative)
    return selected, left_out


def weight_files(folder: Checkpoint) -> set[Path]:
    """The weights that were read, and their indexes, relative to the folder."""
    files = {shard.file for shard in folder.parts} | {shard.index for shard in folder.parts}
    return {file.relative_to(folder.path) for file in files if file is not None}


def refuse_leaving(folder: Path, relative: Path) -> None:
    """Refuses a link, unless to a file next to it or to the blobs of the hub cache around the
    folder.
    """
    resolved, root = (folder / relative).resolve(), folder.resolve()
    if resolved.parent == (root / relative).parent:
        return
    snapshots = next((parent for parent in root.parents if parent.name == "snapshots"), None)
    if snapshots is None or resolved.parent != snapshots.parent / "blobs":
        raise FileError(
            f"{folder / relative} is a link to {resolved}, which is not part of this component and"
            " is not copied. Put the file itself there, or remove the link."
        )


def check_folder(source: Path, target: Path) -> None:
    """Neither folder inside the other, and nothing but a model is ever replaced."""
    ours, theirs = source.resolve(), target.resolve()
    if ours in theirs.parents or theirs in ours.parents:
        raise FileError(
            f"One of output {target} and input {source} is inside the other. Choose another folder"
            " for the output."
        )
    is_model = any((target / name).is_file() for name in ("model_index.json", "config.json"))
    if target.is_dir() and any(target.iterdir()) and not is_model:
        raise FileError(
            f"{target} exists and is not a diffusers folder, so it is not replaced. Choose another"
            " name."
        )


def visible_files(root: Path, below: Path = Path(), *, all_of_it: bool = False) -> Iterator[Path]:
    """Visible files, relative to `root`: no deeper than what is copied or has to be called left
    out. Linked folders are entered only at the top, so there is no circle.

    Args:
        root: The folder of a model.
        below: The folder in it to begin with.
        all_of_it: Hidden files as well, to the bottom, and whatever else has a name: links to
            folders, or to nothing yet, and pipes.
    """
    with reading(f"the folder {root / below}"):
        entries = sorted((root / below).iterdir())
    for entry in entries:
        relative = below / entry.name
        if entry.name.startswith(".") and not all_of_it:
            continue
        if entry.is_dir():
            deep = len(relative.parts) > _MAX_DEPTH and not all_of_it
            if not deep and not (entry.is_symlink() and below.parts):
                yield from visible_files(root, relative, all_of_it=all_of_it)
            elif all_of_it:
                yield relative
        elif entry.is_file() or all_of_it:
            yield relative
