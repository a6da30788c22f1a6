"""Which tensors of a copy differ from its source, byte for byte, in constant memory."""

from __future__ import annotations

from collections.abc import Callable, Collection

from ..errors import FileError
from ..files.checkpoint import Checkpoint

_CHUNK = 4 << 20
_LISTED = 5


def compare_tensors(
    source: Checkpoint,
    copy: Checkpoint,
    edited: Collection[str],
    progress: Callable[[str, int, int], None] | None = None,
) -> list[str]:
    """One sentence for each kind of difference outside `edited`; the source's averaged second copy may be missing."""
    averaged = set(source.ema_keys())
    missing = [key for key in source.shapes if key not in copy.shapes and key not in averaged]
    extra = [key for key in copy.shapes if key not in source.shapes]
    common = [key for key in source.shapes if key in copy.shapes]
    reshaped = [k for k in common if (source.shapes[k], source.dtypes[k]) != (copy.shapes[k], copy.dtypes[k])]
    changed, done, total = [], 0, source.size
    for key in common:
        if key not in edited and key not in reshaped:
            if not _equal(source, copy, key):
                changed.append(key)
            done += _place(source, key)[1]
            if progress:
                progress("compare", min(done, total), total)
    if progress:
        progress("compare", total, total)
    found = (("are missing", missing), ("are new", extra), ("have another shape or type", reshaped))
    return [
        _sentence(what, keys) for what, keys in (*found, ("differ from the base but are not edited", changed)) if keys
    ]


def _sentence(what: str, keys: list[str]) -> str:
    shown = ", ".join(keys[:_LISTED]) + (", ..." if len(keys) > _LISTED else "")
    return f"{len(keys)} tensors {what}: {shown}."


def _place(model: Checkpoint, key: str) -> tuple[int, int]:
    """Where a tensor begins in its file, and its size in bytes."""
    part = model.part_of(key)
    entry = part.header.entries[key[len(part.prefix) :]]
    return part.header.data_start + entry.begin, entry.end - entry.begin


def _equal(source: Checkpoint, copy: Checkpoint, key: str) -> bool:
    ours, size = _place(source, key)
    theirs, _ = _place(copy, key)
    try:
        with source.part_of(key).file.open("rb") as first, copy.part_of(key).file.open("rb") as second:
            first.seek(ours)
            second.seek(theirs)
            while size > 0:
                count = min(_CHUNK, size)
                if first.read(count) != second.read(count):
                    return False
                size -= count
    except OSError as error:
        raise FileError(f"Cannot read {copy.path}: {error.strerror or error}.") from error
    return True
