"""One model file from start to end: opened, checked, erased, saved. Every command that writes a
model goes through here.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from ..erase import erase
from ..errors import SpeedError
from ..files.atomic import output_folder, output_lock
from ..progress import Announce, Progress
from ..recipe import Recipe, StoredJob, recipe_of
from .erased_file import open_erased
from .output_files import OutputFiles, Product
from .preflight import check_paths, made_by, possible_outputs, preflight
from .save import CleanedFile, save
from .source import ModelSource
from .text_setup import TextSetup
from .verify import verify_file


def clean_file(
    path: Path,
    stored: StoredJob,
    text: TextSetup,
    outputs: OutputFiles,
    *,
    note: Announce,
    progress: Progress | None = None,
    label: str = "",
) -> CleanedFile:
    """Opens, checks, erases and saves one model.

    Args:
        path: The model.
        stored: What to erase, and how strongly.
        text: How text becomes embeddings.
        outputs: What to write and where.
        note: Called with each sentence that the user should read.
        progress: Called as the work advances.
        label: URL or path of the model, for messages.
    """
    started = time.perf_counter()
    source, recipe, paths, replaceable = preflight(path, stored, text, outputs, note, label)
    with output_folder(outputs.folder), output_lock(outputs.folder, outputs.stem(path)):
        # another run may have finished meanwhile
        check_paths(paths, source.checkpoint, replaceable, outputs.label)
        workplace = text.workplace()
        erasure = erase(
            stored.job,
            source.model(stored.job.settings.layers),
            text.encoder(source, workplace),
            strength=stored.strength,
            workplace=workplace,
            progress=progress,
            announce=note,
        )
        recipe = replace(
            recipe,
            base_hash=source.checkpoint.sha256(progress),
            encoder_hash=text.encoder_hash(source),
        )
        erasure = replace(erasure, recipe=recipe, notes=(*erasure.notes, *workplace.notes))
        result = save(erasure, source, paths, outputs, replaceable, progress)
    for sentence in (*erasure.notes, *result.notes):
        note(sentence)
    if text.cache is not None and text.cache.problem:
        note(text.cache.problem)
    return replace(result, seconds=time.perf_counter() - started)


def finished(
    path: Path, stored: StoredJob, text: TextSetup, outputs: OutputFiles, label: str = ""
) -> dict[Product, Path]:
    """The results, if all exist and this job made them from this very model; else none.

    Args:
        path: The model.
        stored: The job.
        text: How text becomes embeddings.
        outputs: Where the results go.
        label: URL or path of the model, for messages.
    """
    source = ModelSource.open(path, label)
    possible = possible_outputs(source, stored.job, outputs, lambda sentence: None)
    paths = possible.paths(path)
    if not all(result.exists() for result in paths.values()):
        return {}
    recipe = recipe_of(stored.job, strength=stored.strength, clip_skip=text.clip_skip)
    with_recipe = {path for product, path in paths.items() if product not in ("card", "report")}
    expected = recipe.without_names() if outputs.no_names else recipe
    if not with_recipe or made_by(expected, source, with_recipe) != with_recipe:
        return {}
    if outputs.no_names:
        weights = [paths[product] for product in ("checkpoint", "lora") if product in paths]
        if not weights or not all(_erases(file, path, recipe, text) for file in weights):
            return {}
    return paths


def _erases(file: Path, base: Path, recipe: Recipe, text: TextSetup) -> bool:
    """Whether a file without names does what a recipe asks for, by measurement: nothing in the file
    distinguishes this job from another one with as many names.
    """
    try:
        return not verify_file(open_erased(file, base, recipe=recipe), text).faults
    except SpeedError:
        return False
