"""`erase`: erases concepts from one model, or shows what that would do."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoints.output_files import OutputFiles
from ..recipe import StoredJob
from .blocklist import add_blocklist, blocked_by
from .console import Console, size_in_words, time_in_words
from .options import (
    add_checkpoint,
    add_expert_settings,
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
    from ..checkpoints.text_setup import TextSetup

_EXAMPLE = """\
example:
  speed-erase erase model.safetensors --concepts "Van Gogh -> art" --retain artists --out cleaned"""


def add_to(subparsers: Any) -> None:
    """Declares the command."""
    help = "Erase concepts from a checkpoint or diffusers folder."
    parser = command(subparsers, "erase", run, help, _EXAMPLE)
    add_checkpoint(parser)
    add_job(parser)
    add_outputs(parser)
    add_name(parser)
    help = "scale of the edit (default: 1)"
    parser.add_argument("--strength", type=float, default=1.0, metavar="X", help=help)
    add_text_setup(parser)
    add_expert_settings(parser)
    add_blocklist(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Erases and saves."""
    args.blocked = blocked_by(args, args.kind)
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
    from .outcome import show_erasure

    show_erasure(cleaned, console)
    return 0


def _show_plan(plan: Plan, console: Console) -> None:
    """Prints what would be done, for people or for machines."""
    for sentence in plan.notes:
        console.note(sentence)
    console.result({"dry_run": True, **plan.to_json()})
    console.say(f"{plan.model}: {plan.family}, {layers_in_words(plan)} to edit")
    rows = [("reads", file, size_in_words(size)) for file, size in plan.reads.items()]
    cached = f" ({plan.cached:,} are cached)" if plan.cached else ""
    rows += [
        (product, str(path), size_in_words(size)) for product, (path, size) in plan.writes.items()
    ]
    console.table((), rows, right=(2,))
    console.say(
        f"Encodes up to {plan.texts:,} prompts in about {time_in_words(plan.seconds)}{cached}."
    )
    console.say(f"{size_in_words(plan.free)} free in that folder. Nothing was written.")


def layers_in_words(plan: Plan) -> str:
    """How many layers would be edited."""
    return f"{plan.layers} layer{'' if plan.layers == 1 else 's'}"
