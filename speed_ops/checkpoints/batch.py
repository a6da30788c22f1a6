"""One recipe on every model of a folder: each cleaned, found finished, or failed without stopping the rest."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

from ..errors import FileError, SpeedError
from ..files.checkpoint import Checkpoint
from ..files.header import read_header
from ..files.metadata import read_provenance
from ..files.recipe import Recipe
from ..job import StoredJob, recipe_of, same_work
from ..progress import Stage
from .clean import Note, clean_file, possible_outputs
from .output_files import OutputFiles
from .source import ModelSource, TextSetup


@dataclass(frozen=True)
class Done:
    """What became of one model."""

    model: Path
    status: str
    """cleaned, skipped (finished before) or failed."""
    detail: str
    seconds: float = 0.0


def clean_one(
    model: Path, stored: StoredJob, text: TextSetup, outputs: OutputFiles, note: Note, stopping: threading.Event
) -> Done:
    """Cleans one model unless that is done already; `stopping` is set when the batch is to end."""
    started = time.perf_counter()

    def stop_if_asked(stage: Stage, done: int, total: int) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt

    try:
        if _finished(model, stored, text.clip_skip, outputs):
            return Done(model, "skipped", "Already done.", time.perf_counter() - started)
        outcome = clean_file(
            model, stored.job, text, outputs, strength=stored.strength, note=note, progress=stop_if_asked
        )
    except SpeedError as fault:
        return Done(model, "failed", " ".join(str(fault).split()), time.perf_counter() - started)
    except Exception as fault:  # one bad file must not stop the rest
        return Done(model, "failed", f"{type(fault).__name__}: {str(fault)[:200]}", time.perf_counter() - started)
    concepts = outcome.certificate.concepts if outcome.certificate is not None else ()
    erased = sum(one.verdict == "erased" for one in concepts)
    what = f"{erased} of {len(concepts)} concept{'' if len(concepts) == 1 else 's'} erased"
    return Done(model, "cleaned", f"{what}, {outcome.seconds:.1f} s.", outcome.seconds)


def _finished(model: Path, stored: StoredJob, clip_skip: int | None, outputs: OutputFiles) -> bool:
    """Whether every file is there and says that it was made by this recipe from this very model."""
    source = ModelSource.open(model)
    outputs = possible_outputs(source, stored.job, outputs, lambda text: None)
    paths = outputs.paths(model, is_folder=source.checkpoint.is_folder)
    if not all(path.exists() for path in paths.values()):
        return False
    ours = recipe_of(stored.job, strength=stored.strength, clip_skip=clip_skip)
    ours = ours.redacted_with(outputs.salt) if outputs.salt else ours
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


def find_models(folder: Path, out: Path) -> list[Path]:
    """Single files and diffusers folders directly in `folder`, but for the output folder."""
    try:
        entries = sorted(folder.iterdir())
        found = [
            entry
            for entry in entries
            if entry.suffix.lower() in (".safetensors", ".ckpt", ".pt")
            or ((entry / "model_index.json").is_file() and entry.resolve() != out.resolve())
        ]
    except OSError as error:
        raise FileError(f"Cannot read the folder {folder}: {error.strerror or error}.") from error
    if not found:
        raise FileError(
            f"There is no checkpoint in {folder}: it contains no .safetensors file and no diffusers folder."
        )
    return found
