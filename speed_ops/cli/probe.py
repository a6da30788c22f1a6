"""`speed-erase probe`: which ways to ask for an erased thing still draw it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .apply import load_recipe
from .console import Console
from .options import add_reading, command, reading_from

if TYPE_CHECKING:
    from ..leaks import LeakReport


def add_to(commands: Any) -> None:
    """Declares the subcommand."""
    help = "Try aliases, typing slips and descriptions of what a file has erased. Exit code 1 when one still works."
    parser = command(commands, "probe", run, help)
    parser.add_argument("file", type=Path, metavar="FILE", help="an erased checkpoint, diffusers folder or eraser LoRA")
    parser.add_argument("--base", type=Path, required=True, metavar="BASE", help="the model that it was made from")
    parser.add_argument("--templates", type=int, metavar="N", help="contexts beside the bare phrase")
    parser.add_argument("--describe", default="", metavar="TEXT", help="your own words for the thing, to be tried too")
    parser.add_argument("--recipe", type=Path, metavar="RECIPE", help="the recipe in clear, for a redacted file")
    parser.add_argument("--salt", metavar="TEXT", help="the salt of a redacted file")
    add_reading(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Climbs the ladder of every concept of the file's recipe."""
    recipe = load_recipe(args.recipe) if args.recipe else None
    from ..leaks import TEMPLATES, probe_leaks
    from ..studio.outlook import missing_encoders
    from ..studio.verify_file import open_erased

    erased = open_erased(args.file, args.base, recipe=recipe, salt=args.salt, progress=console.progress)
    reading = reading_from(args, erased.stored.clip_skip)
    report = probe_leaks(
        reading.encoder(erased.source),
        erased.source.weights(erased.stored.job.settings.layers),
        erased.edits,
        erased.stored.job.concepts,
        templates=TEMPLATES if args.templates is None else max(0, args.templates),
        description=args.describe,
        progress=console.progress,
    )
    for text in (*erased.stored.notes, *missing_encoders(erased.source, reading)):
        console.note(text)
    console.say(report.text())
    if report.leaking:
        console.say("Erase these too, from the base, with:")
        for concept in report.closed():
            console.say(f'  --concepts "{concept.as_line()}"')
    console.result(_plain(report))
    return 1 if report.leaking else 0


def _plain(report: LeakReport) -> dict[str, Any]:
    tried = [
        {
            "concept": leak.concept.target,
            "rung": leak.rung,
            "phrase": leak.phrase,
            "prompt": leak.prompt,
            "before": leak.before,
            "after": leak.after,
            "leaks": leak.leaks,
        }
        for leak in report.tried
    ]
    return {"tried": tried, "leaking": len(report.leaking), "closed": [one.as_line() for one in report.closed()]}
