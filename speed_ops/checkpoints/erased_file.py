"""An erased file, read together with the model that it was made from: what ComfyUI and diffusers
would add to each layer, exactly, and every other difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from ..engine.edits import LayerEdit
from ..errors import FileError, Notice
from ..files.checkpoint import Checkpoint
from ..files.lora import read_lora
from ..files.tensors import read_scaled
from ..models.detect import is_lora
from ..progress import Progress
from ..provenance import VERSION, Provenance, history_of, read_provenance
from ..recipe import Recipe, StoredJob, job_of, same_form
from .differences import compare, converted, loader_settings
from .folder_differences import unexpected_files
from .source import ModelSource

LAYERS_HASH = "layers:"
"""What the hash of a base begins with that ComfyUI had loaded: it is not that of a file."""
_LISTED = 5
"""Most names in one sentence."""


@dataclass(frozen=True)
class ErasedFile:
    """A file of ours compared with the model it was made from."""

    provenance: Provenance
    recipe: Recipe
    """The header's; the one that was given, for a file without a header of ours."""
    stored: StoredJob
    source: ModelSource
    edits: dict[str, LayerEdit]
    """By canonical key, each layer that the recipe edits; only layers that differ."""
    strength: float
    """What the recipe's edit is multiplied by in this file."""
    is_lora: bool
    faults: tuple[Notice, ...]
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
        file: An edited checkpoint, diffusion model, folder or LoRA.
        base: The model it was made from.
        recipe: The recipe with names, for a file that was written without them or that another
            program saved again without our header.
        progress: Called while files are read.
    """
    copy = Checkpoint.open(file)
    provenance = read_provenance(copy.metadata, str(file))
    if provenance is None and recipe is not None:
        provenance = Provenance(VERSION, recipe, {}, recipe.base_hash, recipe.encoder_hash)
    if provenance is None:
        raise FileError(
            f"{file} has no erasure in its header.",
            advice="give-named-recipe",
        )
    header = provenance.recipe
    if header is None:
        raise FileError(f"{file} has no recipe in its header. Give a file that speed-erase wrote.")
    stored, source = _stored_job(header, recipe, file), ModelSource.open(base)
    of_file = not provenance.base_hash.startswith(LAYERS_HASH)
    base_hash = provenance.base_hash if of_file else ""
    if base_hash and source.checkpoint.sha256(progress) != base_hash:
        raise FileError(
            f"{base} is not the file that {file} was made from: their hashes differ. Give the"
            " original file."
        )
    lora = is_lora(copy.shapes)
    edits, faults = (_lora_edits if lora else _model_edits)(copy, source, stored, progress)
    return ErasedFile(
        provenance,
        header,
        stored,
        source,
        edits,
        # ComfyUI's savers put the strength into models, and leave it to the loader of a LoRA.
        1.0 if lora and not of_file else stored.strength,
        lora,
        (*faults, *loader_settings(source, copy), *_origin_faults(provenance, header, source)),
    )


def _stored_job(header: Recipe, recipe: Recipe | None, file: Path) -> StoredJob:
    if recipe is None and not header.has_names:
        raise FileError(
            f"{file} was written without names, so it cannot be verified by itself.",
            advice="give-named-recipe",
        )
    if recipe is None:
        return job_of(header, f"The recipe of {file.name}")
    given = recipe if header.has_names else recipe.without_names()
    if not same_form(given, header):
        raise FileError(f"{file} was made with another recipe. Give that one.")
    return job_of(recipe, "The recipe given")


def _lora_edits(
    copy: Checkpoint, source: ModelSource, stored: StoredJob, progress: Progress | None
) -> tuple[dict[str, LayerEdit], list[Notice]]:
    """What a LoRA adds, and a sentence for everything in it that is not an edit of ours."""
    if copy.is_folder:
        raise FileError(f"{copy.path} is a folder. Give the LoRA file itself.")
    try:
        lora = read_lora(copy.path, source.every_layer("KV"))
    except FileError as fault:
        code = str(fault.data.get("fault", "no-edit"))
        return {}, [Notice(str(fault), code=code, keys=[fault.data.get("key", "")])]
    ours = {layer.canonical: layer for layer in source.edited_layers(stored.job.settings)}
    edits = {key: edit for key, edit in lora.edits.items() if key in ours}
    kinds = {
        "foreign-layer": ((*lora.unmatched, *(key for key in lora.edits if key not in ours))),
        "disputed-key": lora.disputed,
        "half-precision": lora.out_of_range,
        "changed-tensor": [
            key
            for key, edit in edits.items()
            if bool(edit.delta()[:, source.text_columns(ours[key]) :].any())
        ],
    }
    faults = [
        Notice(f"{_SENTENCES[code]}: {', '.join(keys[:_LISTED])}.", code=code, keys=keys[:_LISTED])
        for code, keys in kinds.items()
        if keys
    ]
    return edits, faults


_SENTENCES = {
    "foreign-layer": "The LoRA edits layers that the recipe leaves alone",
    "disputed-key": "ComfyUI and diffusers do not read the same from the LoRA's keys",
    "half-precision": "Half precision, in which programs load LoRAs, does not hold these edits",
    "changed-tensor": "The LoRA edits columns that read no text",
}


def _model_edits(
    copy: Checkpoint, source: ModelSource, stored: StoredJob, progress: Progress | None
) -> tuple[dict[str, LayerEdit], list[Notice]]:
    """What was added to each layer of a model, and a sentence for each other kind of difference."""
    base, layers = source.checkpoint, source.edited_layers(stored.job.settings)
    compared = compare(source, copy, {layer.file_key for layer in layers}, progress)
    faults = [*compared.faults, *unexpected_files(base, copy)]
    spoiled = {key for fault in faults for key in fault.data.get("keys", ())}  # type: ignore[attr-defined]
    edits = {}
    for layer in layers:
        key = layer.file_key
        other = compared.pairs.get(key)
        if other is None or other in spoiled:
            continue
        before = read_scaled(base.read, base.shapes, key)[0]
        after = read_scaled(copy.read, copy.shapes, other)[0]
        count = source.text_columns(layer)
        if not converted(before[:, count:], after[:, count:]):
            text = f"{other} is changed in columns that read no text."
            faults.append(Notice(text, code="changed-tensor", keys=[other]))
        delta = after.double() - before.double()
        if bool((delta != 0).any()):
            # The identity is the other factor, on the shorter side.
            outputs, width = delta.shape
            identity = torch.eye(min(outputs, width), dtype=delta.dtype)
            factors = (identity, delta) if outputs < width else (delta, identity)
            edits[layer.canonical] = LayerEdit(*factors)
    if not edits:
        faults.append(Notice("No layer differs from the base: nothing is erased.", code="no-edit"))
    return edits, faults


def _origin_faults(provenance: Provenance, header: Recipe, source: ModelSource) -> list[Notice]:
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
    return [Notice(text, code="origin") for text in faults]
