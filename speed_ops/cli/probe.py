"""`probe`: tries phrases that may still bring back what a file has erased."""

from __future__ import annotations

import argparse
from typing import Any

from .console import Console
from .options import command
from .verify import add_erased_file, erased_file_from


def add_to(subparsers: Any) -> None:
    """Declares the command."""
    help = (
        "Try aliases, typos and descriptions of what a file has erased. The exit code is 1 if one"
        " still works."
    )
    parser = command(subparsers, "probe", run, help)
    help = "how many prompts to try each phrase in"
    parser.add_argument("--templates", type=int, metavar="N", help=help)
    help = "a description of the concept to try instead of the standard ones"
    parser.add_argument("--describe", default="", metavar="TEXT", help=help)
    add_erased_file(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Tries phrases for every concept of the file's recipe."""
    erased, text = erased_file_from(args, console)
    from ..checkpoints.text_setup import missing_encoders
    from ..leak_probe import TEMPLATES, probe_leaks

    workplace = text.workplace()
    report = probe_leaks(
        text.encoder(erased.source, workplace),
        erased.source.model(erased.stored.job.settings.layers).weights,
        erased.edits,
        erased.stored.job.concepts,
        templates=TEMPLATES if args.templates is None else max(0, args.templates),
        description=args.describe,
        progress=console.progress,
        workplace=workplace,
    )
    missing = missing_encoders(erased.source, text)
    for sentence in (*erased.stored.notes, *missing, *workplace.notes):
        console.note(sentence)
    console.say(report.headline())
    shown = report.tried if console.verbose else report.leaking
    rows = [
        (leak.phrase, leak.rung, f"{leak.before:.2f}", f"{leak.after:.2f}", leak.prompt)
        for leak in shown
    ]
    if rows:
        console.table(("Phrase", "type", "before", "after", "prompt"), rows, right=(2, 3))
    if report.leaking:
        console.say("To erase them as well, run `erase` on the original model with:")
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
