"""Does a file do what its header says? The weights are measured again; nothing in the header is
taken on trust.

The difference between the file and its base is measured on the recipe's own prompts and held
against the header's certificate; every tensor that was not to be edited is compared byte for byte.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..certificate.certificate import Certificate
from ..certificate.measure import measure_edits
from ..embed import embed
from ..engine.auto import settle_rows
from ..engine.edits import LayerEdit
from ..engine.prepare import prepare
from ..erase import edited_inputs
from ..errors import FileError, Notice, UnsupportedModelError
from ..files.checkpoint import Checkpoint
from ..files.lora import read_lora
from ..files.rewrite import unexpected_files
from ..files.tensors import read_scaled
from ..inputs import TOKENS
from ..model import EditableModel
from ..models.detect import is_lora
from ..progress import Progress
from ..provenance import Provenance, history_of, read_provenance
from ..recipe import Recipe, StoredJob, job_of, same_form
from ..strength import joined_certificate
from .claims import broken_claims, claimed_section, not_measured
from .erase_file import missing_encoders
from .source import ModelSource, TextSetup


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
    """A file of ours compared with the model it was made from."""

    provenance: Provenance
    recipe: Recipe
    """The header's."""
    stored: StoredJob
    source: ModelSource
    edits: dict[str, LayerEdit]
    """By canonical key; only layers that differ."""
    faults: tuple[str, ...]
    """Differences that are not an edit of ours."""


def open_erased(
    file: Path, base: Path, *, recipe: Recipe | None = None, progress: Progress | None = None
) -> ErasedFile:
    """Reads what was added to the base.

    Args:
        file: An edited checkpoint, folder or LoRA.
        base: The model it was made from.
        recipe: The recipe with names, for a file that was written without them.
        progress: Called while files are read.
    """
    published = Checkpoint.open(file)
    provenance = read_provenance(published.metadata, str(published.path))
    if provenance is None:
        raise FileError(
            f"{published.path} says nothing about an erasure in its header: there is nothing to"
            " verify."
        )
    header = provenance.recipe
    if header is None:
        raise FileError(
            f"{published.path} has no recipe in its header: what it erases is not known."
        )
    stored = _stored_job(header, recipe, file)
    source = ModelSource.open(base)
    if provenance.base_hash and source.base_hash(progress) != provenance.base_hash:
        raise FileError(f"{base} is not the file that {file} was made from: their hashes differ.")
    if is_lora(published.shapes):
        edits, faults = _lora_edits(published, source)
    else:
        edited = {layer.file_key for layer in source.every_layer("KV")}
        faults = compare_tensors(source.checkpoint, published, edited, progress)
        faults += unexpected_files(source.checkpoint, file)
        edits = _differences(source, published, faults)
    faults += _origin_faults(provenance, header, source)
    settings = stored.job.settings
    ours = {layer.canonical for layer in source.edited_layers(settings)}
    faults += _foreign_columns(source, edits)
    faults += [
        f"The layer {key} is edited, but the recipe leaves it alone."
        for key in edits
        if key not in ours
    ][:5]
    ours_edited = {key: edit for key, edit in edits.items() if key in ours}
    return ErasedFile(provenance, header, stored, source, ours_edited, tuple(faults))


def verify_file(
    erased: ErasedFile, text: TextSetup, progress: Progress | None = None
) -> Verification:
    """Measures the difference between a file and its base on the recipe's own prompts.

    Args:
        erased: The file, as `open_erased` reads it.
        text: How text becomes embeddings; its clip skip is the recipe's, `erased.stored.clip_skip`.
        progress: Called as the work advances.
    """
    stored, source = erased.stored, erased.source
    settings = settle_rows(stored.job.settings, len(stored.job.concepts))
    model, encoder = source.model(settings.layers), text.encoder(source)
    text_inputs = edited_inputs(stored.job, model, encoder)
    rows, _ = embed(stored.job, model.weights, encoder, text_inputs, progress)
    certificates: dict[str, Certificate | None] = {}
    for name in text_inputs:
        weights = model.inputs[name]
        if name == TOKENS or _edits_input(erased, weights, name):
            edits = {key: _of_width(erased.edits.get(key), weights[key].shape) for key in weights}
            prepared = prepare(rows[name], settings)
            certificates[name] = measure_edits(weights, edits, prepared, settings, progress)
    measured = joined_certificate(certificates)
    assert measured is not None
    claimed = erased.provenance.certificate
    faults = (
        *erased.faults,
        *broken_claims(claimed, erased.recipe, measured),
        *_unmeasured(erased, model, certificates),
    )
    notes = (*stored.notes, *missing_encoders(source, text), *not_measured(claimed))
    return Verification(claimed, measured, faults, notes)


def _stored_job(header: Recipe, recipe: Recipe | None, file: Path) -> StoredJob:
    if header.has_names:
        return job_of(header, f"The recipe of {file.name}")
    if recipe is None:
        raise FileError(
            f"{file} was written without names, so it cannot be verified by itself.",
            advice="give-named-recipe",
        )
    if not same_form(recipe.without_names(), header):
        raise FileError(f"The recipe given is not the one that {file} was made with.")
    return job_of(recipe, "The recipe given")


def _lora_edits(
    published: Checkpoint, source: ModelSource
) -> tuple[dict[str, LayerEdit], list[str]]:
    try:
        lora = read_lora(published.path, source.every_layer("KV"))
    except UnsupportedModelError as fault:
        raise FileError(str(fault)) from fault
    return lora.edits, [
        f"The LoRA also edits {name}, which our erasures never do." for name in lora.unmatched[:5]
    ]


def _differences(
    source: ModelSource, published: Checkpoint, faults: list[str]
) -> dict[str, LayerEdit]:
    """What was added to each layer, exactly; a layer without any difference is left out."""
    edits = {}
    for layer in source.every_layer("KV"):
        key = layer.file_key
        if source.checkpoint.shapes[key] != published.shapes.get(key):
            continue  # the comparison has said so
        delta = _weight(published, key) - _weight(source.checkpoint, key)
        if not bool(torch.isfinite(delta).all()):
            faults.append(f"{layer.file_key} contains NaN or Inf.")
        elif bool((delta != 0).any()):
            edits[layer.canonical] = _dense(delta)
    return edits


def _weight(model: Checkpoint, key: str) -> torch.Tensor:
    return read_scaled(model.read, model.shapes, key)[0].double()


def _dense(delta: torch.Tensor) -> LayerEdit:
    """A dense difference as an edit: the identity is the other factor, on the shorter side."""
    outputs, width = delta.shape
    if outputs < width:
        return LayerEdit(torch.eye(outputs, dtype=delta.dtype), delta)
    return LayerEdit(delta, torch.eye(width, dtype=delta.dtype))


def _of_width(edit: LayerEdit | None, shape: torch.Size) -> LayerEdit:
    """The edit of the columns that are measured; where there is none, nothing."""
    if edit is not None:
        return LayerEdit(edit.up, edit.down[:, : shape[1]])
    return LayerEdit(
        torch.zeros(shape[0], 1, dtype=torch.float64), torch.zeros(1, shape[1], dtype=torch.float64)
    )


def _foreign_columns(source: ModelSource, edits: Mapping[str, LayerEdit]) -> list[str]:
    """Layers that were changed in columns that read no text (SDXL's sizes)."""
    faults = []
    for layer in source.every_layer("V"):
        count = source.architecture.text_columns(layer.text_input)
        if count is None or layer.canonical not in edits:
            continue
        if bool((edits[layer.canonical].delta()[:, count:] != 0).any()):
            faults.append(f"{layer.file_key} is changed in columns that read no text.")
    return faults


def _edits_input(erased: ErasedFile, weights: Mapping[str, torch.Tensor], name: str) -> bool:
    """Whether the file edits a text input, or claims that it does."""
    claimed = claimed_section(erased.provenance.certificate, name)
    return bool(claimed or erased.edits.keys() & weights.keys())


def _unmeasured(
    erased: ErasedFile, model: EditableModel, certificates: Mapping[str, object]
) -> list[str]:
    """Text inputs that the file edits, or claims to, and that cannot be measured here."""
    return [
        Notice(
            f"The {name} path is edited, but not all of its text encoders are here to measure it.",
            advice="give-text-encoder",
        )
        for name, weights in model.inputs.items()
        if name not in certificates and _edits_input(erased, weights, name)
    ]


def _origin_faults(provenance: Provenance, header: Recipe, source: ModelSource) -> list[str]:
    """Where the header contradicts itself, or the base, about what the file was made from."""
    faults = []
    if not provenance.base_hash:
        faults.append("The header does not say which file it was made from.")
    if (provenance.base_hash, provenance.encoder_hash) != (header.base_hash, header.encoder_hash):
        faults.append("The header and the recipe in it name different files that it was made from.")
    history = history_of(source.checkpoint.metadata)
    if not header.has_names:
        history = tuple(earlier.without_names() for earlier in history)
    if header.history and header.history != history:
        faults.append("The header names earlier erasures that are not those of the base.")
    return faults


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
