"""Write an edited copy of a model: the edited tensors anew, everything else byte for byte, in constant memory."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import FileError
from .atomic import atomic_write, check_target
from .checkpoint import Checkpoint
from .copy_folder import copy_folder
from .rewrite_job import Job, Progress, Replacement


@dataclass(frozen=True)
class Rewritten:
    """What `write_edited` did."""

    path: Path
    rounding: dict[str, float]
    """Key -> Frobenius norm of (stored - wanted): what the file's own dtype cost each edited tensor."""
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
    """Copy `source` to `target` with some tensors replaced (same shape, in their own dtype) and `metadata` merged in.

    `drop` leaves tensors out, such as `source.ema_keys()`. `progress("write", bytes done, bytes in all)` may raise to
    stop. A folder is copied as a folder.
    """
    target = Path(target)
    job = Job(replacements, dict(metadata or {}), frozenset(drop), progress, total=source.size)
    job.check(source)
    check_target(target, force=force, sources=[source.path], folder=source.is_folder)
    _check_space(target, source.size)
    if source.is_folder:
        left_out = copy_folder(source, target, job, force)
    else:
        left_out = []
        with atomic_write(target, force=force, sources=[source.path]) as handle:
            job.rewrite(source.parts[0], handle)
    if progress:
        progress("write", source.size, source.size)
    return Rewritten(target, job.rounding, tuple(left_out))


def _check_space(target: Path, needed: int) -> None:
    """Fail before the first byte where the disk cannot hold the copy."""
    try:
        free = shutil.disk_usage(target.parent).free
    except OSError:
        return  # the write itself will say what is wrong with the folder
    if free < needed:
        raise FileError(
            f"Cannot write {target}: it needs {needed / 1e9:.2f} GB and the disk has {free / 1e9:.2f} GB free;"
            " choose another folder."
        )
