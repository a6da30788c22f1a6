"""One model file from start to end: opened, checked, erased, saved. Every command that writes a
model goes through here.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from ..erase import erase
from ..files.results import output_folder, output_lock
from ..job import Job
from ..progress import Announce, Progress
from .output_files import OutputFiles
from .preflight import check_paths, preflight
from .save import CleanedFile, save
from .text_setup import TextSetup


def clean_file(
    path: Path,
    job: Job,
    text: TextSetup,
    outputs: OutputFiles,
    *,
    strength: float = 1.0,
    note: Announce,
    progress: Progress | None = None,
    label: str = "",
) -> CleanedFile:
    """Opens, checks, erases and saves one model.

    Args:
        path: The model.
        job: What to erase.
        text: How text becomes embeddings.
        outputs: What to write and where.
        strength: Scale of the edit.
        note: Called with each sentence that the user should read.
        progress: Called as the work advances.
        label: URL or path of the model, for messages.
    """
    started = time.perf_counter()
    source, recipe, paths, may_replace = preflight(path, job, text, outputs, strength, note, label)
    with output_folder(outputs.folder), output_lock(outputs.folder, outputs.stem(path)):
        # another run may have finished meanwhile
        check_paths(paths, source.checkpoint, may_replace, outputs.label)
        erasure = erase(
            job,
            source.model(job.settings.layers),
            text.encoder(source),
            strength=strength,
            device=text.device,
            progress=progress,
            announce=note,
        )
        recipe = replace(
            recipe, base_hash=source.base_hash(progress), encoder_hash=text.encoder_hash(source)
        )
        result = save(
            replace(erasure, recipe=recipe),
            source,
            paths,
            may_replace=may_replace,
            strict=outputs.strict,
            no_names=outputs.no_names,
            progress=progress,
        )
    for sentence in (*erasure.notes, *result.notes):
        note(sentence)
    if text.cache is not None and text.cache.problem:
        note(text.cache.problem)
    return replace(result, seconds=time.perf_counter() - started)
