"""`speed-erase batch`: one recipe on every model of a folder."""

from __future__ import annotations

import argparse
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import FileError
from .apply import load_recipe
from .console import Console
from .options import add_reading, command, reading_from
from .usage import UsageError
from .wanted import add_wanted, wanted_from

if TYPE_CHECKING:
    from .batch_model import Done


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
    from ..recipe_job import job_of
    from .batch_model import clean_one

    stored = job_of(recipe, str(args.recipe))
    for text in stored.notes:
        console.note(text)
    wanted = wanted_from(args, console)
    models = find_models(args.folder, args.out)
    reading = reading_from(args, stored.clip_skip)

    stopping = threading.Event()

    def one(model: Path) -> Done:
        done = clean_one(model, stored, reading, wanted, console, stopping)
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


def _summary(results: list[Done], console: Console) -> None:
    console.say()
    rows = [(done.model.name, done.status, f"{done.seconds:.1f} s") for done in results]
    console.table(("Model", "status", "time"), rows)
    counts = {status: sum(done.status == status for done in results) for status in ("cleaned", "skipped", "failed")}
    console.say(", ".join(f"{count} {status}" for status, count in counts.items()) + ".")
    models = [{"model": str(d.model), "status": d.status, "detail": d.detail, "seconds": d.seconds} for d in results]
    console.result({"models": models, **counts})
