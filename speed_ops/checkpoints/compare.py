"""A published copy compared with the model that it was made from."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from ..engine.edits import LayerEdit
from ..files.checkpoint import Checkpoint
from ..files.reading import chunks, open_to_read
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


_LISTED = 5


def compare_tensors(
    source: Checkpoint,
    copy: Checkpoint,
    edited: Collection[str],
    progress: Progress | None = None,
) -> list[str]:
    """One sentence for each kind of difference outside `edited`; the source's averaged second copy
    may be missing.

    Args:
        source: The model.
        copy: The edited copy.
        edited: Keys of the tensors that may differ.
        progress: Called as the work advances.
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
            _, start, stop = source.span(key)
            done += stop - start
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
    sentences = []
    for single, many, keys in differences:
        if keys:
            listed = ", ".join(keys[:_LISTED]) + (", ..." if len(keys) > _LISTED else "")
            subject = f"1 tensor {single}" if len(keys) == 1 else f"{len(keys)} tensors {many}"
            sentences.append(f"{subject}: {listed}.")
    return sentences


def _equal(source: Checkpoint, copy: Checkpoint, key: str) -> bool:
    ours, start, stop = source.span(key)
    theirs, copy_start, _ = copy.span(key)
    with (
        open_to_read(ours.file, ours.label) as first,
        open_to_read(theirs.file, theirs.label) as second,
    ):
        first.seek(start)
        second.seek(copy_start)
        pairs = zip(
            chunks(first, stop - start, ours.label),
            chunks(second, stop - start, theirs.label),
            strict=True,
        )
        return all(chunk == copied for chunk, copied in pairs)
