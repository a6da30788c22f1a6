"""An erased file, read together with the model that it was made from: what was added to each layer,
exactly, and every other difference.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import torch

from ..engine.edits import LayerEdit
from ..errors import FileError
from ..files.checkpoint import Checkpoint
from ..files.lora import read_lora
from ..files.rewrite import unexpected_files
from ..files.tensors import read_scaled
from ..models.detect import is_lora
from ..progress import Progress
from ..provenance import Provenance, history_of, read_provenance
from ..recipe import Recipe, StoredJob, job_of, same_form
from .source import ModelSource

_LISTED = 5
"""Most names in one sentence."""


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

    def edits_input(self, name: str) -> bool:
        """Whether a layer that reads this text input differs."""
        layers = self.source.every_layer(self.stored.job.settings.layers)
        return any(layer.text_input == name and layer.canonical in self.edits for layer in layers)

    def edit_of(self, key: str, shape: torch.Size) -> LayerEdit:
        """The edit of a layer in the columns that are measured; zero where there is none."""
        edit = self.edits.get(key)
        if edit is not None:
            return LayerEdit(edit.up, edit.down[:, : shape[1]])
        up, down = torch.zeros(shape[0], 1), torch.zeros(1, shape[1])
        return LayerEdit(up.double(), down.double())


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
    if provenance.base_hash and source.checkpoint.sha256(progress) != provenance.base_hash:
        raise FileError(f"{base} is not the file that {file} was made from: their hashes differ.")
    if is_lora(published.shapes):
        lora = read_lora(published.path, source.every_layer("KV"))
        edits, others = lora.edits, lora.unmatched[:_LISTED]
        faults = [f"The LoRA also edits {name}, which our erasures never do." for name in others]
    else:
        edits, faults = _copy_edits(published, source, progress)
    faults += _origin_faults(provenance, header, source)
    faults += _foreign_columns(source, edits)
    ours = {layer.canonical for layer in source.edited_layers(stored.job.settings)}
    foreign = [key for key in edits if key not in ours]
    faults += [
        f"The layer {key} is edited, but the recipe leaves it alone." for key in foreign[:_LISTED]
    ]
    ours_edited = {key: edit for key, edit in edits.items() if key in ours}
    return ErasedFile(provenance, header, stored, source, ours_edited, tuple(faults))


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


def _copy_edits(
    copy: Checkpoint, source: ModelSource, progress: Progress | None
) -> tuple[dict[str, LayerEdit], list[str]]:
    """What was added to each layer, exactly; and a sentence for each other kind of difference."""
    base, layers = source.checkpoint, source.every_layer("KV")
    faults = _tensor_faults(base, copy, {layer.file_key for layer in layers}, progress)
    faults += unexpected_files(base, copy.path)
    edits = {}
    for layer in layers:
        key = layer.file_key
        if base.shapes[key] != copy.shapes.get(key):
            continue  # the comparison reports it
        ours, theirs = (read_scaled(model.read, model.shapes, key)[0] for model in (base, copy))
        delta = theirs.double() - ours.double()
        if not bool(torch.isfinite(delta).all()):
            faults.append(f"{key} contains NaN or Inf.")
        elif bool((delta != 0).any()):
            # The identity is the other factor, on the shorter side.
            outputs, width = delta.shape
            identity = torch.eye(min(outputs, width), dtype=delta.dtype)
            factors = (identity, delta) if outputs < width else (delta, identity)
            edits[layer.canonical] = LayerEdit(*factors)
    return edits, faults


def _tensor_faults(
    base: Checkpoint, copy: Checkpoint, edited: Collection[str], progress: Progress | None
) -> list[str]:
    """One sentence for each kind of difference outside `edited`; the base's averaged second copy
    may be missing.
    """
    averaged = set(base.ema_keys())
    missing = [key for key in base.shapes if key not in copy.shapes and key not in averaged]
    extra = [key for key in copy.shapes if key not in base.shapes]
    reshaped, changed, done, total = [], [], 0, base.size
    for key in base.shapes:
        if key not in copy.shapes:
            continue
        if (base.shapes[key], base.dtypes[key]) != (copy.shapes[key], copy.dtypes[key]):
            reshaped.append(key)
        elif key not in edited:
            if not base.same_bytes(key, copy):
                changed.append(key)
            _, start, stop = base.span(key)
            done += stop - start
            if progress:
                progress("compare", min(done, total), total)
    if progress:
        progress("compare", total, total)
    differences = {
        ("is missing", "are missing"): missing,
        ("is new", "are new"): extra,
        ("has a different shape or type", "have a different shape or type"): reshaped,
        (
            "differs from the base but is not edited",
            "differ from the base but are not edited",
        ): changed,
    }
    sentences = []
    for (single, many), keys in differences.items():
        if keys:
            listed = ", ".join(keys[:_LISTED]) + (", ..." if len(keys) > _LISTED else "")
            subject = f"1 tensor {single}" if len(keys) == 1 else f"{len(keys)} tensors {many}"
            sentences.append(f"{subject}: {listed}.")
    return sentences


def _foreign_columns(source: ModelSource, edits: dict[str, LayerEdit]) -> list[str]:
    """Layers that were changed in columns that read no text (SDXL's sizes)."""
    faults = []
    for layer in source.every_layer("V"):
        count = source.architecture.text_columns(layer.text_input)
        if count is None or layer.canonical not in edits:
            continue
        if bool((edits[layer.canonical].delta()[:, count:] != 0).any()):
            faults.append(f"{layer.file_key} is changed in columns that read no text.")
    return faults


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
