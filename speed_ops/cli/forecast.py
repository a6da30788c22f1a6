"""`speed-erase forecast`: the blast radius before any edit."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .console import Console
from .options import add_job, add_reading, command, job_from, reading_from


def add_to(commands: Any) -> None:
    """Declares the subcommand."""
    help = "Say which retain names an unprotected erasure would move, and how far. Nothing is written."
    parser = command(commands, "forecast", run, help)
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="safetensors file or diffusers folder")
    parser.add_argument("--top", type=int, default=20, metavar="N", help="names to show (default: 20)")
    add_reading(parser)
    add_job(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Prints the most endangered names."""
    job = job_from(args)
    from ..studio.checkpoint_job import foresee
    from ..studio.model_source import ModelSource
    from ..studio.outlook import outlook

    source, reading = ModelSource.open(args.checkpoint), reading_from(args)
    for text in outlook(source, job, reading):
        console.note(text)
    ahead = foresee(source, job, reading, console.progress)
    ranked = list(zip(ahead.names, ahead.shifts, strict=True))
    shown = ranked[: max(args.top, 0)]
    console.table(("Name", "Predicted shift"), [(name, f"{shift:.1%}") for name, shift in shown])
    if ranked:
        middle = ranked[len(ranked) // 2][1]
        console.say(f"{len(ranked)} names, median shift {middle:.2%}. An erasure protects the names it is given.")
    console.result({"names": [{"name": name, "shift": shift} for name, shift in ranked]})
    return 0
