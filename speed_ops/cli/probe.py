"""`probe`: tries phrases that may still draw what a file has erased."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..provenance import load_recipe
from .console import Console
from .options import add_text_setup, command, text_setup_from

if TYPE_CHECKING:
    from ..leak_probe import LeakReport


def add_to(subparsers: Any) -> None:
    """Declares the command."""
    help = (
        "Try aliases, typos and descriptions of what a file has erased. Exit code 1 when one still"
        " works."
    )
    parser = command(subparsers, "probe", run, help)
    parser.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help="an erased checkpoint, diffusers folder or eraser LoRA",
    )
    parser.add_argument(
        "--base", type=Path, required=True, metavar="BASE", help="the model that it was made from"
    )
    parser.add_argument(
        "--templates", type=int, metavar="N", help="prompts to try besides the phrase alone"
    )
    describe = "your own description of the concept, tried instead of the standard ones"
    parser.add_argument("--describe", default="", metavar="TEXT", help=describe)
    parser.add_argument(
        "--recipe",
        type=Path,
        metavar="RECIPE",
        help="the recipe with names, for a file written without them",
    )
    add_text_setup(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Climbs the ladder of every concept of the file's recipe."""
    recipe = load_recipe(args.recipe) if args.recipe else None
    from ..checkpoints.erase_file import missing_encoders
    from ..checkpoints.verify import open_erased
    from ..leak_probe import TEMPLATES, probe_leaks

    erased = open_erased(args.file, args.base, recipe=recipe, progress=console.progress)
    text = text_setup_from(args, erased.stored.clip_skip)
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
    console.result(_plain_leaks(report))
    return 1 if report.leaking else 0


def _plain_leaks(report: LeakReport) -> dict[str, Any]:
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
    return {
        "tried": tried,
        "leaking": len(report.leaking),
        "closed": [concept.as_line() for concept in report.closed()],
    }
