"""Does a file do what its header says? The weights are measured again; nothing in the header is taken on trust."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..certificate import Certificate
from ..erase import Progress
from ..erasure import LayerEdit
from ..errors import FileError, UnsupportedModelError
from ..files import foreign
from ..files.checkpoint import Checkpoint
from ..files.lora import read_lora
from ..files.metadata import Provenance, read_provenance
from ..files.recipe import Recipe
from ..pipeline import gather
from ..recipe_job import StoredJob, job_of, same_work
from ..remeasure import measure_edits
from .claims import broken_claims
from .compare_files import compare_tensors
from .model_source import ModelSource
from .outlook import missing_encoders
from .reading import Reading


@dataclass(frozen=True)
class Verification:
    """What was found."""

    claimed: dict[str, Any]
    """The header's certificate."""
    measured: Certificate
    faults: tuple[str, ...]
    """Where file and header disagree, one sentence each; empty: the file does what it says."""
    notes: tuple[str, ...]


@dataclass(frozen=True)
class ErasedFile:
    """A file of ours beside the model it was made from, and the difference between the two."""

    said: Provenance
    stored: StoredJob
    source: ModelSource
    edits: dict[str, LayerEdit]
    """By canonical key; only layers that differ."""
    faults: tuple[str, ...]
    """Differences that are no edit of ours."""


def open_erased(
    file: Path,
    base: Path,
    *,
    recipe: Recipe | None = None,
    salt: str | None = None,
    progress: Progress | None = None,
) -> ErasedFile:
    """Reads what was added to the base. `recipe` and `salt`: for a redacted file."""
    published = Checkpoint.open(file)
    said = _provenance(published)
    stored = _stored_job(said, recipe, salt, file)
    source = ModelSource.open(base)
    if said.base_hash and source.base_hash(progress) != said.base_hash:
        raise FileError(f"{base} is not the file that {file} was made from: their hashes differ.")
    if foreign.is_lora(published.shapes):
        edits, faults = _lora_edits(published, source)
    else:
        edited = {layer.file_key for layer in source.layers("KV")}
        faults = compare_tensors(source.checkpoint, published, edited, progress)
        edits = _differences(source, published, faults)
    ours = {layer.canonical for layer in source.layers(stored.job.settings.layers)}
    faults += [f"The layer {key} is edited, but the recipe leaves it alone." for key in edits if key not in ours][:5]
    return ErasedFile(said, stored, source, {key: edits[key] for key in edits if key in ours}, tuple(faults))


def verify_file(
    file: Path,
    base: Path,
    reading_of: Callable[[int | None], Reading],
    *,
    recipe: Recipe | None = None,
    salt: str | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Measures the difference between `file` (checkpoint, folder or LoRA) and its base on the recipe's own prompts.

    `reading_of`: how text is read, given the recipe's clip skip.
    """
    erased = open_erased(file, base, recipe=recipe, salt=salt, progress=progress)
    stored, source = erased.stored, erased.source
    weights = source.weights(stored.job.settings.layers)
    reading = reading_of(stored.clip_skip)
    gathered, _ = gather(reading.encoder(source), weights, stored.job, progress)
    whole = {key: erased.edits.get(key) or _zero(weights[key].shape) for key in weights}
    measured = measure_edits(weights, whole, gathered, stored.job.settings, progress)
    faults = (*erased.faults, *broken_claims(erased.said.certificate, measured))
    notes = (*stored.notes, *missing_encoders(source, reading))
    return Verification(erased.said.certificate, measured, faults, notes)


def _provenance(published: Checkpoint) -> Provenance:
    said = read_provenance(published.metadata, str(published.path))
    if said is None:
        raise FileError(f"{published.path} says nothing about an erasure in its header: there is nothing to verify.")
    if said.recipe is None:
        raise FileError(f"{published.path} has no recipe in its header: what it erases is not known.")
    return said


def _stored_job(said: Provenance, recipe: Recipe | None, salt: str | None, file: Path) -> StoredJob:
    assert said.recipe is not None
    if not said.recipe.redacted:
        return job_of(said.recipe, f"The recipe of {file.name}")
    if recipe is None or not salt:
        raise FileError(f"{file} is redacted: give the recipe in clear and the salt to verify it.")
    if not same_work(recipe.redacted_with(salt), said.recipe):
        raise FileError(f"The recipe and salt given are not those that {file} was made with.")
    return job_of(recipe, "The recipe given")


def _lora_edits(published: Checkpoint, source: ModelSource) -> tuple[dict[str, LayerEdit], list[str]]:
    try:
        found = read_lora(published.path, source.layers("KV"))
    except UnsupportedModelError as fault:
        raise FileError(str(fault)) from fault
    return found.edits, [f"The LoRA also edits {name}, which no erasure of ours does." for name in found.unmatched[:5]]


def _differences(source: ModelSource, published: Checkpoint, faults: list[str]) -> dict[str, LayerEdit]:
    """What was added to each layer, exactly; a layer without any difference is left out."""
    edits = {}
    for layer in source.layers("KV"):
        key = layer.file_key
        if source.checkpoint.shapes[key] != published.shapes.get(key):
            continue  # the comparison has said so
        delta = published.read(layer.file_key).double() - source.checkpoint.read(layer.file_key).double()
        if not bool(torch.isfinite(delta).all()):
            faults.append(f"{layer.file_key} holds NaN or Inf.")
        elif bool((delta != 0).any()):
            edits[layer.canonical] = _dense(delta)
    return edits


def _dense(delta: torch.Tensor) -> LayerEdit:
    """A dense difference as an edit: the identity is the other factor, on the shorter side."""
    outputs, width = delta.shape
    if outputs < width:
        return LayerEdit(torch.eye(outputs, dtype=delta.dtype), delta)
    return LayerEdit(delta, torch.eye(width, dtype=delta.dtype))


def _zero(shape: torch.Size) -> LayerEdit:
    return LayerEdit(torch.zeros(shape[0], 1, dtype=torch.float64), torch.zeros(1, shape[1], dtype=torch.float64))
