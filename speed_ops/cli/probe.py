"""`probe`: tries phrases that may still bring back what a file has erased, or measures how a model
responds to a name.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..text.kinds import KINDS
from ..text.retain_set import read_retain
from .console import Console
from .options import command, refuse_alone, text_setup_from
from .verify import add_erased_file, erased_file_from


def add_to(subparsers: Any) -> None:
    """Declares the command."""
    help = (
        "Try aliases, typos and descriptions of what a file has erased; the exit code is 1 if one"
        " still works. With --name: measure how a model responds to a name."
    )
    parser = command(subparsers, "probe", run, help)
    help = "how many prompts to try each phrase or reference name in"
    parser.add_argument("--templates", type=int, metavar="N", help=help)
    help = "a description of the concept to try instead of the standard ones"
    parser.add_argument("--describe", default="", metavar="TEXT", help=help)
    group = parser.add_argument_group("does this model know a name?")
    help = "measure how FILE responds to this name; --base is not needed"
    group.add_argument("--name", metavar="NAME", help=help)
    help = "type of the name (default: style)"
    group.add_argument("--kind", choices=list(KINDS), default="style", help=help)
    help = "names to compare with (default: a built-in list of the type)"
    group.add_argument("--known", type=Path, metavar="FILE", help=help)
    help = "also write the result as a page to share"
    group.add_argument("--page", type=Path, metavar="FILE", help=help)
    add_erased_file(parser, base_required=False)


def run(args: argparse.Namespace, console: Console) -> int:
    """Tries phrases for every concept of the file's recipe, or measures a name."""
    if args.name is not None:
        return _run_name(args, console)
    for flag in ("known", "page"):
        refuse_alone(args, flag, "name")
    if args.base is None:
        raise UsageError("Give --base with the original model, or --name with a name to look for.")
    return _run_leaks(args, console)


def _run_name(args: argparse.Namespace, console: Console) -> int:
    if args.base is not None or args.recipe is not None:
        raise UsageError("--name measures FILE alone. Remove --base and --recipe.")
    name = " ".join(args.name.split())
    if not name:
        raise UsageError("--name is empty. Give the name to look for.")
    from ..checkpoints.source import ModelSource
    from ..checkpoints.text_setup import missing_encoders
    from ..files.atomic import write_bytes
    from ..name_probe import PROMPTS, probe_name
    from ..report.name_page import name_page

    source, text = ModelSource.open(args.file), text_setup_from(args)
    workplace = text.workplace()
    report = probe_name(
        text.encoder(source, workplace),
        source.model("KV").weights,
        name,
        args.kind,
        read_retain(args.known) if args.known else None,
        prompting=source.architecture.prompting,
        prompts=PROMPTS if args.templates is None else max(1, args.templates),
        progress=console.progress,
        workplace=workplace,
    )
    for sentence in (*missing_encoders(source, text), *workplace.notes):
        console.note(sentence)
    for line in report.text().splitlines():
        console.say(line)
    if args.page is not None:
        page = name_page(report, args.file.name)
        write_bytes(args.page, page.encode("utf-8", "replace"), force=True)
        console.say(f"Saved {args.page}")
    console.result(dataclasses.asdict(report) | {"responds": report.responds})
    return 0


def _run_leaks(args: argparse.Namespace, console: Console) -> int:
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
