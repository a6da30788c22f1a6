"""`erase`: erases concepts from one model, or says what that would do."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoints.output_files import OutputFiles
from ..recipe import StoredJob
from .blocklist import add_blocklist
from .console import Console, size_in_words, time_in_words
from .options import (
    add_checkpoint,
    add_job,
    add_name,
    add_outputs,
    add_text_setup,
    command,
    job_from,
    outputs_from,
    strength_from,
    text_setup_from,
)

if TYPE_CHECKING:
    from ..checkpoints.plan import Plan
    from ..checkpoints.save import CleanedFile
    from ..checkpoints.text_setup import TextSetup

_EXAMPLE = """\
example:
  speed-erase erase model.safetensors --concepts "Van Gogh -> art" --retain artists --out cleaned"""


def add_to(subparsers: Any) -> None:
    """Declares the command."""
    help = "Erase concepts from a checkpoint or diffusers folder."
    parser = command(subparsers, "erase", run, help, _EXAMPLE)
    add_checkpoint(parser)
    add_outputs(parser)
    add_name(parser)
    help = "scale of the edit (default: 1)"
    parser.add_argument("--strength", type=float, default=1.0, metavar="X", help=help)
    add_text_setup(parser)
    add_job(parser)
    add_blocklist(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Erases and saves."""
    strength, job = strength_from(args), job_from(args, console.note)
    outputs, text = outputs_from(args, args.name), text_setup_from(args)
    return erase_model(
        args.checkpoint, StoredJob(job, strength), text, outputs, console, args.dry_run
    )


def erase_model(
    model: Path,
    stored: StoredJob,
    text: TextSetup,
    outputs: OutputFiles,
    console: Console,
    dry_run: bool,
) -> int:
    """Erases from one model, or shows the plan.

    Args:
        model: The model.
        stored: What to erase and what to keep, and how strongly.
        text: How to read text.
        outputs: The files to write.
        console: Where the result is shown.
        dry_run: Show the plan and write nothing.
    """
    if dry_run:
        from ..checkpoints.plan import plan_file

        _show_plan(plan_file(model, stored, text, outputs), console)
        return 0
    from ..checkpoints.erase_file import clean_file

    cleaned = clean_file(model, stored, text, outputs, note=console.note, progress=console.progress)
    show_erasure(cleaned, console)
    return 0


def show_erasure(cleaned: CleanedFile, console: Console) -> None:
    """Prints what was done, for people or for machines."""
    erasure = cleaned.erasure
    rows, recipe, certificate = erasure.text_report, erasure.recipe, erasure.certificate
    assert rows is not None and recipe is not None and certificate is not None
    console.result(
        {
            "model": str(cleaned.source),
            "family": erasure.architecture.name,
            "files": {product: str(path) for product, path in cleaned.files.items()},
            "base_hash": recipe.base_hash,
            "lora_error": cleaned.lora_error,
            "rounding": cleaned.rounding,
            "notes": [*erasure.notes, *cleaned.notes],
            "dropped": list(rows.dropped),
            "unusable": list(rows.unusable),
            "encoded": rows.encoded,
            "reused": rows.reused,
            "seconds": round(cleaned.seconds, 3),
            "certificate": certificate.to_json(),
        }
    )
    console.page("\n".join((erasure.text(), *cleaned.notes)))
    for product, path in cleaned.files.items():
        size = f"  ({size_in_words(path.stat().st_size)})" if path.is_file() else ""
        console.say(f"{product:<10}  {path}{size}")
    if cleaned.rounding is not None:
        console.say(
            f"Rounding to the file's own precision loses {cleaned.rounding:.2%} of the edit."
        )
    console.say(f"Done in {cleaned.seconds:.1f} s.")


def _show_plan(plan: Plan, console: Console) -> None:
    """Prints what would be done, for people or for machines."""
    for sentence in plan.notes:
        console.note(sentence)
    console.result({"dry_run": True, **plan.to_json()})
    console.say(f"{plan.model}: a {plan.family} model; {layers_in_words(plan)} would be edited.")
    for file, size in plan.reads.items():
        console.say(f"reads       {file}  ({size_in_words(size)})")
    uncached = ", which"
    if plan.cached is not None:
        uncached = f", at least {plan.cached} of them from the cache; the rest"
    console.say(
        f"encodes     up to {plan.texts} texts{uncached} takes about {time_in_words(plan.seconds)}"
    )
    for product, (path, size) in plan.writes.items():
        console.say(f"{product:<10}  {path}  (about {size_in_words(size)})")
    console.say(f"{size_in_words(plan.free)} are free there. Nothing was written.")


def layers_in_words(plan: Plan) -> str:
    """How many layers would be edited."""
    return f"{plan.layers} layer{'' if plan.layers == 1 else 's'}"
