"""An erased file, read together with the model that it was made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..engine.edits import LayerEdit
from ..errors import FileError, UnsupportedModelError
from ..files.checkpoint import Checkpoint
from ..files.lora import read_lora
from ..models.detect import is_lora
from ..progress import Progress
from ..provenance import Provenance, history_of, read_provenance
from ..recipe import Recipe, StoredJob, job_of, same_form
from .claims import claimed_section
from .compare import compare_copies
from .source import ModelSource


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
        """Whether the file edits a text input, or claims that it does."""
        keys = {
            layer.canonical
            for layer in self.source.every_layer(self.stored.job.settings.layers)
            if layer.text_input == name
        }
        return bool(claimed_section(self.provenance.certificate, name) or keys & self.edits.keys())


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
        layers = source.every_layer("KV")
        edits, faults = compare_copies(source.checkpoint, published, layers, progress)
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
