"""`speed-erase batch`: one recipe on every model of a folder."""

from __future__ import annotations

import argparse
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import FileError, SpeedError
from ..files.header import read_header
from ..files.metadata import read_provenance
from ..files.recipe import Recipe
from ..recipe_job import StoredJob, job_of, recipe_of, same_work
from ..studio.checkpoint_job import Reading
from ..studio.model_source import ModelSource
from ..studio.outputs import product_paths
from .apply import load_recipe
from .cleaning import Wanted, add_wanted, clean_file, plan_products, wanted_from
from .console import Console
from .options import add_reading, command, reading_from
from .usage import UsageError


@dataclass(frozen=True)
class Done:
    """What became of one model."""

    model: Path
    status: str
    """cleaned, skipped (finished before) or failed."""
    detail: str
    seconds: float = 0.0


def add_to(commands: Any) -> None:
    """Declares the subcommand."""
    help = "Apply a recipe to every checkpoint in a folder. Run it again to resume: finished models are skipped."
    parser = command(commands, "batch", run, help)
    parser.add_argument("--recipe", type=Path, required=True, metavar="RECIPE", help="recipe, or a file that holds one")
    parser.add_argument("--in", dest="folder", type=Path, required=True, metavar="DIR", help="folder with the models")
    add_wanted(parser)
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="models at a time (default: 1)")
    add_reading(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """All models, then a table; exit code 1 when any has failed."""
    if not 1 <= args.jobs <= 64:
        raise UsageError(f"{args.jobs} jobs at a time: choose from 1 to 64.")
    recipe = load_recipe(args.recipe)
    stored = job_of(recipe, str(args.recipe))
    for text in stored.notes:
        console.note(text)
    wanted = wanted_from(args, console)
    models = find_models(args.folder, args.out)
    reading = reading_from(args, stored.clip_skip)

    stopping = threading.Event()

    def one(model: Path) -> Done:
        done = _clean_one(model, stored, reading, wanted, console, stopping)
        console.say(f"{model.name}: {done.status}. {done.detail}")
        return done

    with ThreadPoolExecutor(args.jobs) as pool:
        try:
            results = list(pool.map(one, models))
        except BaseException:
            stopping.set()
            pool.shutdown(cancel_futures=True)
            raise
    _summary(results, console)
    return 1 if any(done.status == "failed" for done in results) else 0


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
        raise FileError(f"There is no checkpoint in {folder}: it holds no .safetensors file and no diffusers folder.")
    return found


def _clean_one(
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
            from ..files.checkpoint import Checkpoint

            metadata = Checkpoint.open(path).metadata
        elif path.suffix == ".safetensors":
            metadata = read_header(path).metadata
        else:
            return None
        said = read_provenance(metadata, str(path))
    except SpeedError:
        return None
    return said.recipe if said else None


def _summary(results: list[Done], console: Console) -> None:
    console.say()
    rows = [(done.model.name, done.status, f"{done.seconds:.1f} s") for done in results]
    console.table(("Model", "status", "time"), rows)
    counts = {status: sum(done.status == status for done in results) for status in ("cleaned", "skipped", "failed")}
    console.say(", ".join(f"{count} {status}" for status, count in counts.items()) + ".")
    models = [{"model": str(d.model), "status": d.status, "detail": d.detail, "seconds": d.seconds} for d in results]
    console.result({"models": models, **counts})
