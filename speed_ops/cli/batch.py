"""`batch`: applies one recipe to many models, here or on a Ray cluster."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..recipe import StoredJob
from .console import Console, size_in_words
from .erase import layers_in_words
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

if TYPE_CHECKING:
    from ..checkpoints.batch import Candidate, Done
    from ..checkpoints.plan import Plan
    from ..checkpoints.source import TextSetup

LEDGER = "fleet-ledger.jsonl"


def add_to(subparsers: Any) -> None:
    """Declares the command."""
    help = (
        "Apply a recipe to every checkpoint in a folder. Run it again to resume: finished models"
        " are skipped."
    )
    parser = command(subparsers, "batch", run, help)
    parser.add_argument(
        "--recipe",
        type=Path,
        required=True,
        metavar="RECIPE",
        help="recipe, or a file with one in its header",
    )
    folder = "folder with the models"
    parser.add_argument(
        "--in", dest="folder", type=path_or_url, required=True, metavar="DIR", help=folder
    )
    parser.add_argument(
        "--recursive",
        action="store_true",
        help="also the folders below it; the results mirror those folders",
    )
    for flag, models in (
        ("--include", "only the models that match"),
        ("--exclude", "not the models that match"),
    ):
        help = f"{models}: a pattern such as 'sdxl/*', on the path below DIR; repeatable"
        parser.add_argument(flag, action="append", default=[], metavar="GLOB", help=help)
    add_outputs(parser, path_or_url)
    jobs = "models at a time (default: 1; on ray: as many as there is room for)"
    parser.add_argument("--jobs", type=int, metavar="N", help=jobs)
    add_json_lines(parser)
    _add_fleet(parser)
    add_text_setup(parser)


def _add_fleet(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("many machines (docs/fleet.md)")
    on = (
        "where to work: here (default), or on a Ray cluster; then DIR may be a URL such as"
        " s3://bucket/models"
    )
    group.add_argument("--on", choices=("here", "ray"), default="here", help=on)
    address = (
        "of the cluster: ray://host:port, host:port or auto (default: one is started on this"
        " machine)"
    )
    group.add_argument("--address", metavar="URL", help=address)
    ledger = (
        f"what became of each model, one JSON line each (default: {LEDGER} in the output folder)"
    )
    group.add_argument("--ledger", type=Path, metavar="FILE", help=ledger)
    scratch = "where workers put what they fetch (default: the temporary folder)"
    group.add_argument("--scratch", type=Path, metavar="DIR", help=scratch)


def run(args: argparse.Namespace, console: Console) -> int:
    """All models, then a table; exit code 1 when any has failed."""
    most = 64 if args.on == "here" else 100_000
    if args.jobs is not None and not 1 <= args.jobs <= most:
        raise UsageError(f"--jobs is {args.jobs}: choose from 1 to {most}.")
    if args.on == "ray":
        return _batch_on_ray(args, console)
    if wrong := [
        flag for flag in ("address", "ledger", "scratch") if getattr(args, flag) is not None
    ]:
        raise UsageError(f"--{wrong[0]} needs --on ray.")
    if isinstance(args.folder, str) or isinstance(args.out, str):
        raise UsageError("URLs need --on ray; without it, give folders.")
    stored = stored_job_from(args, console.note)
    outputs = outputs_from(args)
    from ..checkpoints.batch import find_models

    found = find_models(
        args.folder, outputs, recursive=args.recursive, include=args.include, exclude=args.exclude
    )
    text = text_setup_from(args, stored.clip_skip)
    return clean_many(found, stored, text, console, args.dry_run, args.jobs or 1)


def clean_many(
    found: Sequence[Candidate],
    stored: StoredJob,
    text: TextSetup,
    console: Console,
    dry_run: bool,
    jobs: int = 1,
) -> int:
    """One job on many models.

    Args:
        found: What may be models.
        stored: What to erase and what to keep, and how strongly.
        text: How to read text.
        console: Where the results are shown.
        dry_run: Show what would be done and write nothing.
        jobs: Models at a time.
    """
    from ..checkpoints.batch import classify, clean_one, for_each

    models = classify(found, stored, text.clip_skip)

    def clean(one: Candidate, stopping: threading.Event) -> Done:
        return clean_one(
            one, stored, text, lambda sentence: console.note(f"{one.name}: {sentence}"), stopping
        )

    work = _planner(stored, text) if dry_run else clean
    results = for_each(models, work, _on_done(len(models), console), 1 if dry_run else jobs)
    return _sum_up(dry_run, models, results, console)


def _on_done(total: int, console: Console) -> Callable[[int, Candidate, Done], None]:
    def report(count: int, model: Candidate, done: Done) -> None:
        console.say(f"[{count}/{total}] {model.name}: {done.status}. {done.detail}")
        console.part(_plain_done(done))

    return report


def _sum_up(
    dry_run: bool, models: Sequence[Candidate], results: Sequence[Done], console: Console
) -> int:
    console.say()
    rows = [
        (model.name, done.status, f"{done.seconds:.1f} s")
        for model, done in zip(models, results, strict=True)
    ]
    console.table(("Model", "status", "time"), rows)
    counts = {
        status: sum(done.status == status for done in results)
        for status in ("ready" if dry_run else "cleaned", "skipped", "failed")
    }
    console.say(", ".join(f"{count} {status}" for status, count in counts.items()) + ".")
    console.result(
        counts if console.lines else {"models": [_plain_done(done) for done in results], **counts}
    )
    return 1 if counts["failed"] else 0


def _batch_on_ray(args: argparse.Namespace, console: Console) -> int:
    """The same on many machines, with a ledger."""
    if args.ledger is None and isinstance(args.out, str):
        raise UsageError(
            "The results go to a URL: give --ledger FILE, a local file that says what became of"
            " each model."
        )
    if args.device.startswith("cuda:"):
        raise UsageError(f"--device is {args.device}: on ray use cuda, and Ray chooses which.")
    if args.threads is not None and args.threads < 1:
        raise UsageError(f"--threads is {args.threads}: choose 1 or more.")
    stored = stored_job_from(args, console.note)
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
        found = mirror.find_models(
            outputs, recursive=args.recursive, include=args.include, exclude=args.exclude
        )
        models = classify(found, stored, text.clip_skip)
        on_done = _on_done(len(models), console)
        if args.dry_run:
            ledger = read_ledger(path)
            results = Fleet(models, mirror, worker, ledger, on_done, console.note).plan()
        else:
            with open_ledger(path) as ledger:
                fleet = Fleet(models, mirror, worker, ledger, on_done, console.note)
                results = fleet.run(args.address, args.jobs)
    return _sum_up(args.dry_run, models, results, console)


def _planner(stored: StoredJob, text: TextSetup) -> Callable[[Candidate, threading.Event], Done]:
    """Replaces the work by a plan of it. The disk must hold the results of all models."""
    from ..checkpoints.batch import Done, finished
    from ..checkpoints.plan import plan_file, refuse_without_space

    plans: list[Plan] = []

    def plan_one(model: Candidate, stopping: threading.Event) -> Done:
        if model.known is not None:
            return model.known
        try:
            if finished(model, stored, text.clip_skip):
                return model.already_done()
            plan = plan_file(model.path, stored.job, text, model.outputs, stored.strength)
            plans.append(plan)
            refuse_without_space(plans)
        except Exception as fault:
            return model.failed(fault)
        size = size_in_words(plan.size)
        detail = f"{plan.family}, {layers_in_words(plan)}; it would write about {size}."
        return Done(model.label, "ready", detail, facts=plan.to_json())

    return plan_one


def _plain_done(done: Done) -> dict[str, Any]:
    plain = {
        "model": done.model,
        "status": done.status,
        "detail": done.detail,
        "seconds": round(done.seconds, 3),
    }
    failed = {"error": {"code": done.code, "message": done.detail}} if done.code else {}
    return {**(done.facts or {}), **plain, **failed}
