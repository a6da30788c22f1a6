"""`speed-erase erase`: clean one model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .console import Console
from .options import add_job, add_reading, command, job_from, reading_from
from .usage import UsageError
from .wanted import add_wanted, wanted_from

_EPILOG = """\
example:
  speed-erase erase model.safetensors --concepts "Van Gogh -> art" --retain artists --out cleaned"""


def add_to(commands: Any) -> None:
    """Declares the subcommand."""
    parser = command(commands, "erase", run, "Erase concepts from a checkpoint or diffusers folder.", _EPILOG)
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="safetensors file or diffusers folder")
    add_wanted(parser)
    parser.add_argument("--name", default="", metavar="NAME", help="what the results are called (default: the model's)")
    parser.add_argument("--strength", type=float, default=1.0, metavar="X", help="scale of the edit (default: 1)")
    add_reading(parser)
    add_job(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Solves and saves."""
    if not -100 <= args.strength <= 100:
        raise UsageError(f"The strength is {args.strength:g}: it must lie in -100 to 100.")
    job = job_from(args)
    wanted = wanted_from(args, console, args.name)
    from .cleaning import clean_file, show

    reading = reading_from(args)
    result = clean_file(args.checkpoint, job, reading, args.strength, wanted, console.note, console.progress)
    show(result, console)
    return 0
