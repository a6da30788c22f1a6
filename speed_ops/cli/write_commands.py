"""The commands that write files: `erase`, `apply`, `batch` and `demo`."""

from __future__ import annotations

import argparse
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoints.output_files import PRODUCTS, OutputFiles
from ..concepts.concept_list import parse_concepts
from ..concepts.retain_set import builtin_retain
from ..engine.settings import EraseSettings
from ..files.metadata import load_recipe
from ..job import HELD_OUT_SHARE, Job, job_of
from .console import Console
from .options import (
    UsageError,
    add_job,
    add_outputs,
    add_text_setup,
    command,
    job_from,
    outputs_from,
    strength_from,
    text_setup_from,
)

if TYPE_CHECKING:
    from ..checkpoints.batch import Done
    from ..erase import Outcome

_ERASE_EXAMPLE = """\
example:
  speed-erase erase model.safetensors --concepts "Van Gogh -> art" --retain artists --out cleaned"""
DEMO_CONCEPTS = "Vincent van Gogh | Van Gogh -> art\nClaude Monet | Monet -> art"
DEMO_NAMES = 250
DEMO_MODEL = "demo-model.safetensors"


def add_erase(commands: Any) -> None:
    """Declares `erase`."""
    help = "Erase concepts from a checkpoint or diffusers folder."
    parser = command(commands, "erase", run_erase, help, _ERASE_EXAMPLE)
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="safetensors file or diffusers folder")
    add_outputs(parser)
    parser.add_argument(
        "--name", default="", metavar="NAME", help="base name of the results (default: the model's name)"
    )
    parser.add_argument("--strength", type=float, default=1.0, metavar="X", help="scale of the edit (default: 1)")
    add_text_setup(parser)
    add_job(parser)


def run_erase(args: argparse.Namespace, console: Console) -> int:
    """Erases and saves."""
    strength, job = strength_from(args), job_from(args)
    outputs = outputs_from(args, console, args.name)
    from ..checkpoints.clean import clean_file

    text = text_setup_from(args)
    outcome = clean_file(
        args.checkpoint, job, text, outputs, strength=strength, note=console.note, progress=console.progress
    )
    show(outcome, console)
    return 0


def add_apply(commands: Any) -> None:
    """Declares `apply`."""
    help = "Repeat a recipe on a model: same concepts, settings and lists, with an edit made for this model."
    parser = command(commands, "apply", run_apply, help)
    parser.add_argument("recipe", type=Path, metavar="RECIPE", help="recipe, or a file with one in its header")
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="safetensors file or diffusers folder")
    add_outputs(parser)
    parser.add_argument(
        "--name", default="", metavar="NAME", help="base name of the results (default: the model's name)"
    )
    add_text_setup(parser)


def run_apply(args: argparse.Namespace, console: Console) -> int:
    """Reads the recipe, then does what `erase` does."""
    stored = job_of(load_recipe(args.recipe), str(args.recipe))
    for sentence in stored.notes:
        console.note(sentence)
    outputs = outputs_from(args, console, args.name)
    from ..checkpoints.clean import clean_file

    text = text_setup_from(args, stored.clip_skip)
    outcome = clean_file(
        args.checkpoint,
        stored.job,
        text,
        outputs,
        strength=stored.strength,
        note=console.note,
        progress=console.progress,
    )
    show(outcome, console)
    return 0


def add_batch(commands: Any) -> None:
    """Declares `batch`."""
    help = "Apply a recipe to every checkpoint in a folder. Run it again to resume: finished models are skipped."
    parser = command(commands, "batch", run_batch, help)
    parser.add_argument(
        "--recipe", type=Path, required=True, metavar="RECIPE", help="recipe, or a file with one in its header"
    )
    parser.add_argument("--in", dest="folder", type=Path, required=True, metavar="DIR", help="folder with the models")
    add_outputs(parser)
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="models at a time (default: 1)")
    add_text_setup(parser)


def run_batch(args: argparse.Namespace, console: Console) -> int:
    """All models, then a table; exit code 1 when any has failed."""
    if not 1 <= args.jobs <= 64:
        raise UsageError(f"--jobs is {args.jobs}: choose from 1 to 64.")
    stored = job_of(load_recipe(args.recipe), str(args.recipe))
    for sentence in stored.notes:
        console.note(sentence)
    outputs = outputs_from(args, console)
    from ..checkpoints.batch import clean_one, find_models

    models = find_models(args.folder, args.out)
    text = text_setup_from(args, stored.clip_skip)
    stopping = threading.Event()

    def one(model: Path) -> Done:
        done = clean_one(model, stored, text, outputs, console.note, stopping)
        console.say(f"{model.name}: {done.status}. {done.detail}")
        return done

    with ThreadPoolExecutor(args.jobs) as pool:
        try:
            results = list(pool.map(one, models))
        except BaseException:
            stopping.set()
            pool.shutdown(cancel_futures=True)
            raise
    _batch_summary(results, console)
    return 1 if any(done.status == "failed" for done in results) else 0


def _batch_summary(results: list[Done], console: Console) -> None:
    console.say()
    rows = [(done.model.name, done.status, f"{done.seconds:.1f} s") for done in results]
    console.table(("Model", "status", "time"), rows)
    counts = {status: sum(done.status == status for done in results) for status in ("cleaned", "skipped", "failed")}
    console.say(", ".join(f"{count} {status}" for status, count in counts.items()) + ".")
    models = [{"model": str(d.model), "status": d.status, "detail": d.detail, "seconds": d.seconds} for d in results]
    console.result({"models": models, **counts})


def add_demo(commands: Any) -> None:
    """Declares `demo`."""
    help = "Make a small synthetic checkpoint, erase two concepts from it and show the certificate. Needs no model."
    parser = command(commands, "demo", run_demo, help)
    parser.add_argument("--out", type=Path, default=Path("demo-out"), metavar="DIR", help="default: demo-out")


def run_demo(args: argparse.Namespace, console: Console) -> int:
    """Everything in the folder of the demo is the demo's: it is overwritten."""
    from ..checkpoints.clean import clean_file
    from ..checkpoints.demo import write_demo_checkpoint
    from ..checkpoints.save import output_folder
    from ..checkpoints.source import TextSetup

    model = args.out / DEMO_MODEL
    settings = EraseSettings.preset("auto", held_out=HELD_OUT_SHARE, effort="quick")
    job = Job.of(parse_concepts(DEMO_CONCEPTS, "style"), builtin_retain("artists").limit(DEMO_NAMES), settings)
    outputs = OutputFiles(args.out, PRODUCTS, name="demo-model", force=True)
    with output_folder(args.out):
        write_demo_checkpoint(model, force=True, progress=console.progress)
        what = "a synthetic Stable Diffusion 1.x checkpoint with real keys, the real tokenizer and random weights"
        console.say(f"{model}: {what}.")
        outcome = clean_file(model, job, TextSetup(), outputs, note=console.note, progress=console.progress)
    console.say()
    show(outcome, console)
    console.say(f"Open {outcome.files['report']} in a browser. Then try:")
    console.say(f"  speed-erase verify {outcome.files['checkpoint']} --base {model}")
    return 0


def show(outcome: Outcome, console: Console) -> None:
    """The outcome for people, or for machines."""
    console.result(_plain(outcome))
    console.say(outcome.text())
    for product, path in outcome.files.items():
        console.say(f"{product:<10}  {path}{_size(path)}")
    if outcome.rounding is not None:
        console.say(f"Rounding to the file's own precision loses {outcome.rounding:.2%} of the edit.")
    console.say(f"Done in {outcome.seconds:.1f} s.")


def _plain(outcome: Outcome) -> dict[str, Any]:
    rows, recipe, certificate = outcome.rows, outcome.recipe, outcome.certificate
    assert rows is not None and recipe is not None and certificate is not None
    return {
        "model": outcome.source,
        "family": outcome.architecture.name,
        "files": {product: str(path) for product, path in outcome.files.items()},
        "base_hash": recipe.base_hash,
        "lora_error": outcome.lora_error,
        "rounding": outcome.rounding,
        "notes": list(outcome.notes),
        "dropped": list(rows.dropped),
        "unusable": list(rows.unusable),
        "encoded": rows.encoded,
        "reused": rows.reused,
        "seconds": round(outcome.seconds, 3),
        "certificate": certificate.to_json(),
    }


def _size(path: Path) -> str:
    if not path.is_file():
        return ""
    size = path.stat().st_size
    return f"  ({size / 1e6:.1f} MB)" if size >= 1e5 else f"  ({size / 1e3:.1f} kB)"
