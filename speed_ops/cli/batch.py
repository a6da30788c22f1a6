"""`batch`: applies one recipe to many models, here or on a Ray cluster."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .blocklist import add_blocklist, with_blocklists
from .console import Console
from .many_models import clean_many, on_done, overview_writer, sum_up
from .options import (
    add_json_lines,
    add_outputs,
    add_text_setup,
    command,
    outputs_from,
    path_or_url,
    stored_job_from,
    text_setup_from,
)

LEDGER = "fleet-ledger.jsonl"


def add_to(subparsers: Any) -> None:
    """Declares the command."""
    help = (
        "Apply a recipe to every checkpoint in a folder. Run it again to resume: finished models"
        " are skipped."
    )
    parser = command(subparsers, "batch", run, help)
    help = "recipe, or a file with one in its header"
    parser.add_argument("--recipe", type=Path, required=True, metavar="RECIPE", help=help)
    add_blocklist(parser)
    help = "folder with the models"
    parser.add_argument(
        "--in", dest="folder", type=path_or_url, required=True, metavar="DIR", help=help
    )
    help = "include folders below it; the results mirror those folders"
    parser.add_argument("--recursive", action="store_true", help=help)
    for flag, models in (
        ("--include", "only models that match"),
        ("--exclude", "no models that match"),
    ):
        help = f"{models} a pattern such as 'sdxl/*' (path below DIR); repeatable"
        parser.add_argument(flag, action="append", default=[], metavar="GLOB", help=help)
    add_outputs(parser, path_or_url)
    help = (
        "write overview.html and overview.json into the output folder: models x concepts, side"
        " effects, and images before and after where the demo model or --server generates them"
    )
    parser.add_argument("--overview", action="store_true", help=help)
    help = (
        "a ComfyUI that has the models and the results and generates images for --overview;"
        " repeatable"
    )
    parser.add_argument("--server", action="append", default=[], metavar="URL", help=help)
    jobs = "models at a time (default: 1; on Ray: as many as fit)"
    parser.add_argument("--jobs", type=int, metavar="N", help=jobs)
    add_json_lines(parser)
    _add_fleet(parser)
    add_text_setup(parser)


def _add_fleet(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("many machines (docs/hosts/fleet.md)").add_argument
    help = (
        "where to work: here (default), or on a Ray cluster, where DIR may be a URL such as"
        " s3://bucket/models"
    )
    add("--on", choices=("here", "ray"), default="here", help=help)
    help = "the cluster: ray://host:port, host:port or auto (default: start one on this machine)"
    add("--address", metavar="URL", help=help)
    help = f"result of each model as a JSON line (default: {LEDGER} in the output folder)"
    add("--ledger", type=Path, metavar="FILE", help=help)
    help = "folder for files that workers fetch (default: the temporary folder)"
    add("--scratch", type=Path, metavar="DIR", help=help)


def run(args: argparse.Namespace, console: Console) -> int:
    """All models, then a table; exit code 1 when any has failed."""
    most = 64 if args.on == "here" else 100_000
    if args.jobs is not None and not 1 <= args.jobs <= most:
        raise UsageError(f"Invalid --jobs {args.jobs}. Use a number from 1 to {most}.")
    if args.server and not args.overview:
        raise UsageError("--server generates images for the overview. Add --overview.")
    if args.on == "ray":
        if args.overview:
            raise UsageError("--overview works only with --on here. Leave it out.")
        return _batch_on_ray(args, console)
    for flag in ("address", "ledger", "scratch"):
        if getattr(args, flag) is not None:
            raise UsageError(f"--{flag} works only with --on ray. Add --on ray.")
    if isinstance(args.folder, str) or isinstance(args.out, str):
        raise UsageError("URLs need --on ray. Add it, or give folders.")
    stored = with_blocklists(stored_job_from(args, console.note), args)
    outputs = outputs_from(args)
    from ..checkpoints.batch import find_models

    candidates = find_models(
        args.folder, outputs, recursive=args.recursive, include=args.include, exclude=args.exclude
    )
    text = text_setup_from(args, stored.clip_skip)
    overview = None
    if args.overview and not args.dry_run:
        overview = overview_writer(args.out, stored, args.server, console)
    return clean_many(candidates, stored, text, console, args.dry_run, args.jobs or 1, overview)


def _batch_on_ray(args: argparse.Namespace, console: Console) -> int:
    """The same on many machines, with a ledger."""
    if args.ledger is None and isinstance(args.out, str):
        raise UsageError(
            "The results go to a URL, but the ledger needs a local file. Give --ledger FILE."
        )
    if args.device.startswith("cuda:"):
        raise UsageError(
            f"--device is {args.device}. On Ray, use --device cuda; Ray chooses which."
        )
    if args.threads is not None and args.threads < 1:
        raise UsageError(f"Invalid --threads {args.threads}. Use 1 or more.")
    stored = with_blocklists(stored_job_from(args, console.note), args)
    outputs = outputs_from(args)
    from ..checkpoints.batch import classify
    from ..fleet.catalogue import HeaderMirror
    from ..fleet.ledger import open_ledger, read_ledger
    from ..fleet.scheduler import Fleet
    from ..fleet.store import scratch_folder
    from ..fleet.worker import Worker

    text = text_setup_from(args, stored.clip_skip, here=False).portable()
    worker = Worker(stored, text, args.threads or 1, args.scratch, not args.no_cache)
    path = args.ledger or args.out / LEDGER
    with scratch_folder() as base:
        mirror = HeaderMirror(base, args.folder, args.out)
        candidates = mirror.find_models(
            outputs, recursive=args.recursive, include=args.include, exclude=args.exclude
        )
        models = classify(candidates, stored, text.clip_skip)
        report = on_done(len(models), console)
        if args.dry_run:
            ledger = read_ledger(path)
            results = Fleet(models, mirror, worker, ledger, report, console.note).plan()
        else:
            with open_ledger(path) as ledger:
                fleet = Fleet(models, mirror, worker, ledger, report, console.note)
                results = fleet.run(args.address, args.jobs)
    return sum_up(args.dry_run, models, results, console)
