"""A published copy compared with the model that it was made from."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from ..engine.edits import LayerEdit
from ..errors import FileError
from ..files.checkpoint import Checkpoint
from ..files.rewrite import unexpected_files
from ..files.tensors import read_scaled
from ..models.architecture import LayerKey
from ..progress import Progress


def compare_copies(
    source: Checkpoint,
    copy: Checkpoint,
    layers: Sequence[LayerKey],
    progress: Progress | None = None,
) -> tuple[dict[str, LayerEdit], list[str]]:
    """What was added to each layer, exactly, and one sentence for each other kind of difference.

    Args:
        source: The model.
        copy: The edited copy.
        layers: Layers that may differ; one without a difference is not in the result.
        progress: Called as the work advances.
    """
    faults = compare_tensors(source, copy, {layer.file_key for layer in layers}, progress)
    faults += unexpected_files(source, copy.path)
    edits = {}
    for layer in layers:
        key = layer.file_key
        if source.shapes[key] != copy.shapes.get(key):
            continue  # the comparison reports it
        delta = _weight(copy, key) - _weight(source, key)
        if not bool(torch.isfinite(delta).all()):
            faults.append(f"{key} contains NaN or Inf.")
        elif bool((delta != 0).any()):
            edits[layer.canonical] = _dense(delta)
    return edits, faults


def _weight(model: Checkpoint, key: str) -> torch.Tensor:
    return read_scaled(model.read, model.shapes, key)[0].double()


def _dense(delta: torch.Tensor) -> LayerEdit:
    """A dense difference as an edit: the identity is the other factor, on the shorter side."""
    outputs, width = delta.shape
    if outputs < width:
        return LayerEdit(torch.eye(outputs, dtype=delta.dtype), delta)
    return LayerEdit(delta, torch.eye(width, dtype=delta.dtype))


_CHUNK = 4 << 20
_LISTED = 5


def compare_tensors(
    source: Checkpoint,
    copy: Checkpoint,
    edited: Collection[str],
    progress: Progress | None = None,
) -> list[str]:
    """One sentence for each kind of difference outside `edited`; the source's averaged second copy
    may be missing.
    """
    averaged = set(source.ema_keys())
    missing = [key for key in source.shapes if key not in copy.shapes and key not in averaged]
    extra = [key for key in copy.shapes if key not in source.shapes]
    common = [key for key in source.shapes if key in copy.shapes]
    reshaped = [
        k
        for k in common
        if (source.shapes[k], source.dtypes[k]) != (copy.shapes[k], copy.dtypes[k])
    ]
    changed, done, total = [], 0, source.size
    for key in common:
        if key not in edited and key not in reshaped:
            if not _equal(source, copy, key):
                changed.append(key)
            done += _span(source, key)[1]
            if progress:
                progress("compare", min(done, total), total)
    if progress:
        progress("compare", total, total)
    differences = (
        ("is missing", "are missing", missing),
        ("is new", "are new", extra),
        ("has a different shape or type", "have a different shape or type", reshaped),
        (
            "differs from the base but is not edited",
            "differ from the base but are not edited",
            changed,
        ),
    )
    return [_sentence(single, many, keys) for single, many, keys in differences if keys]


def _sentence(single: str, many: str, keys: list[str]) -> str:
    shown = ", ".join(keys[:_LISTED]) + (", ..." if len(keys) > _LISTED else "")
    return (
        f"1 tensor {single}: {shown}."
        if len(keys) == 1
        else f"{len(keys)} tensors {many}: {shown}."
    )


def _span(model: Checkpoint, key: str) -> tuple[int, int]:
    """Where a tensor begins in its file, and its size in bytes."""
    part = model.part_of(key)
    entry = part.header.entries[key[len(part.prefix) :]]
    return part.header.data_start + entry.begin, entry.end - entry.begin


def _equal(source: Checkpoint, copy: Checkpoint, key: str) -> bool:
    ours, size = _span(source, key)
    theirs, _ = _span(copy, key)
    try:
        with (
            source.part_of(key).file.open("rb") as first,
            copy.part_of(key).file.open("rb") as second,
        ):
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
