"""One model file from start to end: opened, checked, erased, saved. Every command that writes a
model goes through here.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from ..erase import erase
from ..files.atomic import output_folder, output_lock
from ..progress import Announce, Progress
from ..recipe import StoredJob
from .output_files import OutputFiles
from .preflight import check_paths, preflight
from .save import CleanedFile, save
from .text_setup import TextSetup


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
