"""One model of a batch: cleaned, found finished, or failed without stopping the rest."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

from ..errors import SpeedError
from ..files.checkpoint import Checkpoint
from ..files.header import read_header
from ..files.metadata import read_provenance
from ..files.recipe import Recipe
from ..recipe_job import StoredJob, recipe_of, same_work
from ..studio.model_source import ModelSource
from ..studio.products import product_paths
from ..studio.reading import Reading
from .cleaning import clean_file, plan_products
from .console import Console
from .wanted import Wanted


@dataclass(frozen=True)
class Done:
    """What became of one model."""

    model: Path
    status: str
    """cleaned, skipped (finished before) or failed."""
    detail: str
    seconds: float = 0.0


def clean_one(
    model: Path, stored: StoredJob, reading: Reading, wanted: Wanted, console: Console, stopping: threading.Event
) -> Done:
    started = time.perf_counter()

    def stop_if_asked(stage: str, done: int, total: int) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt

    try:
        if _finished(model, stored, reading.clip_skip, wanted):
            return Done(model, "skipped", "It was finished before.", time.perf_counter() - started)
        result = clean_file(model, stored.job, reading, stored.strength, wanted, console.note, stop_if_asked)
    except SpeedError as fault:
        return Done(model, "failed", " ".join(str(fault).split()), time.perf_counter() - started)
    except Exception as fault:  # one bad file must not stop the rest
        return Done(model, "failed", f"{type(fault).__name__}: {str(fault)[:200]}", time.perf_counter() - started)
    concepts = result.cleaned.certificate.concepts
    erased = sum(one.verdict == "erased" for one in concepts)
    return Done(
        model, "cleaned", f"{erased} of {len(concepts)} concepts erased, {result.seconds:.1f} s.", result.seconds
    )


def _finished(model: Path, stored: StoredJob, clip_skip: int | None, wanted: Wanted) -> bool:
    """Whether every file is there and says that it was made by this recipe from this very model."""
    source = ModelSource.open(model)
    products = plan_products(source, stored.job, wanted, lambda text: None).products
    is_folder = source.checkpoint.is_folder
    paths = product_paths(wanted.folder, model, products, is_folder=is_folder)
    if not all(path.exists() for path in paths.values()):
        return False
    ours = recipe_of(stored.job, strength=stored.strength, clip_skip=clip_skip)
    ours = ours.redacted_with(wanted.salt) if wanted.salt else ours
    found = [recipe for path in paths.values() if (recipe := _recipe_in(path)) is not None]
    if not found or not all(same_work(ours, recipe) for recipe in found):
        return False
    digest = source.base_hash()
    return all(recipe.base_hash == digest for recipe in found)


def _recipe_in(path: Path) -> Recipe | None:
    """The recipe that a finished file names; None for a report, which has none."""
    try:
        if path.suffix == ".json":
            return Recipe.read(path)
        if path.is_dir():
            metadata = Checkpoint.open(path).metadata
        elif path.suffix == ".safetensors":
            metadata = read_header(path).metadata
        else:
            return None
        said = read_provenance(metadata, str(path))
    except SpeedError:
        return None
    return said.recipe if said else None
