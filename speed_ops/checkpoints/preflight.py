"""Refuses, before the long work, everything that would be refused after it."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from ..errors import FileError, SpeedError
from ..files.atomic import check_target
from ..files.checkpoint import Checkpoint
from ..files.rewrite import check_folder, check_space, folder_files
from ..job import Job
from ..progress import Announce
from ..provenance import header_recipe, history_of
from ..recipe import Recipe, StoredJob, recipe_of, same_form
from ..report.card import is_ours
from .output_files import OutputFiles, Product, parse_products
from .source import ModelSource
from .text_setup import TextSetup, before_starting

LORA_SPACE = 100_000_000
"""Disk space required in addition to a checkpoint; LoRAs of a hundred concepts are smaller."""
_NAME_BYTES = 255
"""Longest file name on every file system in use."""


def preflight(
    path: Path,
    stored: StoredJob,
    text: TextSetup,
    outputs: OutputFiles,
    note: Announce,
    label: str = "",
) -> tuple[ModelSource, Recipe, dict[Product, Path], set[Path]]:
    """Refuses everything that can be refused before the work.

    Args:
        path: The model.
        stored: What to erase, and how strongly.
        text: How text becomes embeddings.
        outputs: What to write and where.
        note: Called with each sentence that the user should read.
        label: URL or path of the model, for messages.

    Returns:
        The model, the recipe, where the results go, and which of them may exist.
    """
    source = ModelSource.open(path, label)
    outputs = possible_outputs(source, stored.job, outputs, note)
    paths = outputs.paths(path)
    recipe = recipe_of(
        stored.job,
        strength=stored.strength,
        clip_skip=text.clip_skip,
        family=source.architecture.name,
        history=history_of(source.checkpoint.metadata),
    )
    recipe.check_size(max(shard.header.data_start for shard in source.checkpoint.parts))
    existing = {path for path in paths.values() if os.path.lexists(path)}
    replaceable = set(paths.values()) if outputs.force else set()
    if not outputs.force and 0 < len(existing) < len(paths):
        replaceable = made_by(recipe, source, existing)
        if replaceable:
            note("Finishing a save that an earlier run left incomplete.")
    check_paths(paths, source.checkpoint, replaceable, outputs.label)
    for sentence in before_starting(source, stored.job, text):
        note(sentence)
    return source, recipe, paths, replaceable


def made_by(recipe: Recipe, source: ModelSource, paths: Collection[Path]) -> set[Path]:
    """Those files whose own recipe is this one, made from this same model, with their card.

    Args:
        recipe: The recipe to look for.
        source: The model.
        paths: Files that may contain it.
    """
    hashes = {
        path: stored.base_hash
        for path in paths
        if (stored := _recipe_in(path)) is not None and same_form(recipe, stored)
    }
    digest = source.checkpoint.sha256() if hashes else ""
    made = {path for path, base_hash in hashes.items() if base_hash == digest}
    cards = {path for path in paths if made and path.suffix == ".md" and is_ours(path, digest)}
    return made | cards


def _recipe_in(path: Path) -> Recipe | None:
    try:
        if path.suffix == ".json":
            return Recipe.read(path)
        if path.suffix not in (".safetensors", "") and not path.is_dir():
            return None  # a report
        return header_recipe(Checkpoint.open(path).metadata)
    except SpeedError:
        return None


def possible_outputs(
    source: ModelSource, job: Job, outputs: OutputFiles, note: Announce
) -> OutputFiles:
    """What can be written for this model: 8-bit weights cannot store an edit, but take a LoRA.

    Args:
        source: The model.
        job: What to erase.
        outputs: What the user asked to write.
        note: Called with a sentence if the outputs change.
    """
    if "checkpoint" not in outputs.products or source.takes_edits(job.settings.layers):
        return outputs
    note(
        f"{source.checkpoint.path.name} stores these layers in 8 bits, too coarse to store an edit."
        " SPEED writes a LoRA instead."
    )
    remaining = {product for product in outputs.products if product != "checkpoint"} | {"lora"}
    return replace(outputs, products=parse_products(sorted(remaining)))


def check_paths(
    paths: Mapping[Product, Path],
    source: Checkpoint,
    replaceable: Collection[Path],
    label: Callable[[Path], str],
) -> None:
    """Refuses paths that cannot be written.

    Args:
        paths: Where the products go.
        source: The model.
        replaceable: Which of them may exist already.
        label: What messages call a file.
    """
    for product, path in paths.items():
        folder = source.is_folder and product == "checkpoint"
        if len(os.fsencode(path.name)) > _NAME_BYTES:
            raise FileError(
                f"Cannot write {label(path)}: the name is too long for this file system. Choose a"
                " shorter one."
            )
        check_target(
            path,
            force=path in replaceable,
            sources=[source.path],
            folder=folder,
            label=label(path),
        )
        if folder:
            check_folder(source.path, path)
            folder_files(source)
        if product == "checkpoint":
            check_space(path, source.size + LORA_SPACE)
