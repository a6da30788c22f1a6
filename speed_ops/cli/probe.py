"""`probe`: tries phrases that may still draw what a file has erased."""

from __future__ import annotations

import argparse
from typing import Any

from .console import Console
from .options import command
from .verify import add_erased_file, erased_file_from


def add_to(subparsers: Any) -> None:
    """Declares the command."""
    help = (
        "Try aliases, typos and descriptions of what a file has erased. Exit code 1 when one still"
        " works."
    )
    parser = command(subparsers, "probe", run, help)
    help = "prompts to try besides the phrase alone"
    parser.add_argument("--templates", type=int, metavar="N", help=help)
    help = "your own description of the concept, tried instead of the standard ones"
    parser.add_argument("--describe", default="", metavar="TEXT", help=help)
    add_erased_file(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Climbs the ladder of every concept of the file's recipe."""
    erased, text = erased_file_from(args, console)
    from ..checkpoints.text_setup import missing_encoders
    from ..leak_probe import TEMPLATES, probe_leaks

    report = probe_leaks(
        text.encoder(erased.source),
        erased.source.model(erased.stored.job.settings.layers).weights,
        erased.edits,
        erased.stored.job.concepts,
        templates=TEMPLATES if args.templates is None else max(0, args.templates),
        description=args.describe,
        progress=console.progress,
    )
    for sentence in (*erased.stored.notes, *missing_encoders(erased.source, text)):
        console.note(sentence)
    console.page(report.text())
    if report.leaking:
        console.say("To erase these as well, run `erase` on the base model with:")
        for concept in report.closed():
            console.say(f'  --concepts "{concept.as_line()}"')
    names = ("rung", "phrase", "prompt", "before", "after", "leaks")
    console.result(
        {
            "tried": [
                {"concept": leak.concept.target} | {name: getattr(leak, name) for name in names}
                for leak in report.tried
            ],
            "leaking": len(report.leaking),
            "closed": [concept.as_line() for concept in report.closed()],
        }
    )
    return 1 if report.leaking else 0
