"""`forecast`: shows which names an erasure would change if nothing protected them."""

from __future__ import annotations

import argparse
from typing import Any

from .console import Console
from .options import (
    add_checkpoint,
    add_expert_settings,
    add_job,
    add_text_setup,
    command,
    job_from,
    text_setup_from,
)


def add_to(subparsers: Any) -> None:
    """Declares the command."""
    help = (
        "Show which names an erasure would change most if nothing protected them. Nothing is"
        " written."
    )
    parser = command(subparsers, "forecast", run, help)
    add_checkpoint(parser)
    help = "names to show (default: 20)"
    parser.add_argument("--top", type=int, default=20, metavar="N", help=help)
    add_job(parser)
    add_text_setup(parser)
    add_expert_settings(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Prints the most affected names."""
    job = job_from(args, console.note)
    from ..checkpoints.source import ModelSource
    from ..checkpoints.text_setup import before_starting
    from ..erase import predict

    source, text = ModelSource.open(args.checkpoint), text_setup_from(args)
    for sentence in before_starting(source, job, text):
        console.note(sentence)
    model = source.model(job.settings.layers)
    workplace = text.workplace()
    ahead = predict(job, model, text.encoder(source, workplace), console.progress, workplace)
    for sentence in workplace.notes:
        console.note(sentence)
    ranked = list(zip(ahead.names, ahead.shifts, strict=True))
    top = [(name, f"{shift:.2f}") for name, shift in ranked[: max(args.top, 0)]]
    console.table(("Most affected if unprotected", "change"), top, right=(1,))
    if ranked and console.verbose:
        console.say(f"Median of {len(ranked):,} names: {ranked[len(ranked) // 2][1]:.2f}")
    console.say("`erase` protects the names on its lists.")
    console.result({"names": [{"name": name, "shift": shift} for name, shift in ranked]})
    return 0
