"""Copy a diffusers folder with its edited weights rewritten and no second copy of the unedited ones left in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ..errors import FileError
from .atomic import atomic_folder
from .checkpoint import Checkpoint
from .rewrite_job import Job

_WEIGHTS = (
    *(".safetensors", ".ckpt", ".pt", ".pth", ".bin", ".msgpack", ".h5", ".gguf"),
    *(".onnx", ".onnx_data", ".pb", ".xml", ".index.json"),
)
_MAX_DEPTH = 6


def copy_folder(source: Checkpoint, target: Path, job: Job, force: bool) -> list[Path]:
    """Write the folder; returns the files that were left out, relative to it.

    Left out: other weight files of an edited component (`.fp16` variants, pickles) and whole checkpoints beside the
    component folders, because both would still know what was erased; for the same reason hidden ones (caches).
    """
    _check_places(source.path, target)
    parts = {part.file.relative_to(source.path): part for part in source.parts}
    indices = {part.index.relative_to(source.path) for part in source.parts if part.index}
    edited = {relative.parent for relative, part in parts.items() if job.touches(part)}
    left_out = []
    with atomic_folder(target, force=force, sources=[source.path]) as temporary:
        for relative in _files(source.path):
            part = parts.get(relative)
            weights = relative.name.lower().endswith(_WEIGHTS) and part is None and relative not in indices
            beside = len(relative.parts) == 1 or relative.parts[0].startswith("unet_ema")
            if weights and (relative.parent in edited or beside):
                left_out.append(relative)
                continue
            copy = temporary / relative
            copy.parent.mkdir(parents=True, exist_ok=True)
            with copy.open("xb") as handle:
                if part and job.touches(part):
                    job.rewrite(part, handle)
                else:
                    job.copy(source.path / relative, handle)
                handle.flush()
                os.fsync(handle.fileno())
    return left_out


def _check_places(source: Path, target: Path) -> None:
    """Neither folder inside the other, and nothing but a model is ever replaced."""
    ours, theirs = source.resolve(), target.resolve()
    if ours in theirs.parents or theirs in ours.parents:
        raise FileError(
            f"Output {target} and input {source} lie inside each other: choose another folder for the output."
        )
    is_model = any((target / name).is_file() for name in ("model_index.json", "config.json"))
    if target.is_dir() and any(target.iterdir()) and not is_model:
        raise FileError(f"{target} exists and is not a diffusers folder: it is not replaced; choose another name.")


def _files(root: Path, below: Path = Path(), depth: int = 0) -> Iterator[Path]:
    """All visible files, relative to `root`; links are followed, to a depth that ends circles."""
    for entry in sorted((root / below).iterdir()):
        relative = below / entry.name
        if entry.name.startswith("."):
            continue
        if entry.is_dir() and depth < _MAX_DEPTH:
            yield from _files(root, relative, depth + 1)
        elif entry.is_file():
            yield relative
