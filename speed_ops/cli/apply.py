"""`apply`: repeats a recipe on a model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .console import Console
from .erase import erase_model
from .options import (
    add_checkpoint,
    add_name,
    add_outputs,
    add_text_setup,
    command,
    outputs_from,
    stored_job_from,
    text_setup_from,
)


def add_to(subparsers: Any) -> None:
    """Declares the command."""
    help = (
        "Repeat a recipe on a model: same concepts, settings and lists, with an edit made for this"
        " model."
    )
    parser = command(subparsers, "apply", run, help)
    parser.add_argument(
        "recipe", type=Path, metavar="RECIPE", help="recipe, or a file with one in its header"
    )
    add_checkpoint(parser)
    add_outputs(parser)
    add_name(parser)
    add_text_setup(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Reads the recipe, then does what `erase` does."""
    stored = stored_job_from(args, console.note)
    outputs, text = outputs_from(args, args.name), text_setup_from(args, stored.clip_skip)
    return erase_model(args.checkpoint, stored, text, outputs, console, args.dry_run)
