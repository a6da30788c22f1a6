"""The commands that write files: `erase`, `apply`, `batch` and `demo`."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoints.output_files import OutputFiles
from ..errors import UsageError
from ..job import StoredJob, job_of
from ..provenance import load_recipe
from .console import Console
from .options import (
    add_job,
    add_outputs,
    add_text_setup,
    command,
    job_from,
    offer,
    outputs_from,
    path_or_url,
    strength_from,
    text_setup_from,
)

if TYPE_CHECKING:
    from ..checkpoints.batch import Candidate, Done
    from ..checkpoints.plan import Plan
    from ..checkpoints.source import TextSetup
    from ..erasure import Erasure

_ERASE_EXAMPLE = """\
example:
  speed-erase erase model.safetensors --concepts "Van Gogh -> art" --retain artists --out cleaned"""
LEDGER = "fleet-ledger.jsonl"


def add_erase(commands: Any) -> None:
    """Declares `erase`."""
    help = "Erase concepts from a checkpoint or diffusers folder."
    parser = command(commands, "erase", run_erase, help, _ERASE_EXAMPLE)
    parser.add_argument(
        "checkpoint", type=Path, metavar="CHECKPOINT", help="safetensors file or diffusers folder"
    )
    add_outputs(parser)
    _add_name(parser)
    strength = "scale of the edit (default: 1)"
    offer(parser.add_argument("--strength", type=float, default=1.0, metavar="X", help=strength))
    parser.add_argument(
        "--print-job",
        action="store_true",
        help="print the job file that says the same, for `run`, and do no more",
    )
    add_text_setup(parser)
    add_job(parser)


def _add_name(parser: argparse.ArgumentParser) -> None:
    help = "base name of the results (default: the model's name)"
    offer(parser.add_argument("--name", default="", metavar="NAME", help=help))


def run_erase(args: argparse.Namespace, console: Console) -> int:
    """Erases and saves."""
    strength, job = strength_from(args), job_from(args, console.note)
    if args.print_job:
        from .job_file import print_job

        return print_job(args, console)
    outputs = outputs_from(args, console.note, args.name)
    return _erase_one(args, StoredJob(job, strength, None, ()), outputs, console)


def _erase_one(
    args: argparse.Namespace, stored: StoredJob, outputs: OutputFiles, console: Console
) -> int:
    """One model, or what would be done to it."""
    text = text_setup_from(args, stored.clip_skip)
    if args.dry_run:
        from ..checkpoints.plan import plan_file

        show_plan(plan_file(args.checkpoint, stored.job, text, outputs, stored.strength), console)
        return 0
    from ..checkpoints.erase_file import clean_file

    outcome = clean_file(
        args.checkpoint,
        stored.job,
        text,
        outputs,
        strength=stored.strength,
        note=console.note,
        progress=console.progress,
    )
    show(outcome, console)
    return 0


def add_apply(commands: Any) -> None:
    """Declares `apply`."""
    help = (
        "Repeat a recipe on a model: same concepts, settings and lists, with an edit made for this"
        " model."
    )
    parser = command(commands, "apply", run_apply, help)
    parser.add_argument(
        "recipe", type=Path, metavar="RECIPE", help="recipe, or a file with one in its header"
    )
    parser.add_argument(
        "checkpoint", type=Path, metavar="CHECKPOINT", help="safetensors file or diffusers folder"
    )
    add_outputs(parser)
    _add_name(parser)
    add_text_setup(parser)


def run_apply(args: argparse.Namespace, console: Console) -> int:
    """Reads the recipe, then does what `erase` does."""
    stored = _stored(args, console)
    return _erase_one(args, stored, outputs_from(args, console.note, args.name), console)


def _stored(args: argparse.Namespace, console: Console) -> StoredJob:
    stored = job_of(load_recipe(args.recipe), str(args.recipe))
    for sentence in stored.notes:
        console.note(sentence)
    return stored


def add_batch(commands: Any) -> None:
    """Declares `batch`."""
    help = (
        "Apply a recipe to every checkpoint in a folder. Run it again to resume: finished models"
        " are skipped."
    )
    parser = command(commands, "batch", run_batch, help)
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
    for flag, what in (
        ("--include", "only the models that match"),
        ("--exclude", "not the models that match"),
    ):
        help = f"{what}: a pattern such as 'sdxl/*', on the path below DIR; repeatable"
        offer(parser.add_argument(flag, action="append", default=[], metavar="GLOB", help=help))
    add_outputs(parser, path_or_url)
    jobs = "models at a time (default: 1; on ray: as many as there is room for)"
    offer(parser.add_argument("--jobs", type=int, metavar="N", help=jobs))
    add_lines(parser)
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
    offer(group.add_argument("--address", metavar="URL", help=address))
    ledger = (
        f"what became of each model, one JSON line each (default: {LEDGER} in the output folder)"
    )
    group.add_argument("--ledger", type=Path, metavar="FILE", help=ledger)
    scratch = "where workers put what they fetch (default: the temporary folder)"
    group.add_argument("--scratch", type=Path, metavar="DIR", help=scratch)


def add_lines(parser: argparse.ArgumentParser) -> None:
    """For commands that come to several models."""
    parser.add_argument(
        "--json-lines",
        action="store_true",
        help="one JSON object a line: for each model when it is done, then for all",
    )


def run_batch(args: argparse.Namespace, console: Console) -> int:
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
    stored = _stored(args, console)
    outputs = outputs_from(args, console.note)
    from ..checkpoints.batch import find_models

    found = find_models(
        args.folder, outputs, recursive=args.recursive, include=args.include, exclude=args.exclude
    )
    return clean_many(args, found, stored, console, args.jobs or 1)


def clean_many(
    args: argparse.Namespace,
    found: Sequence[Candidate],
    stored: StoredJob,
    console: Console,
    jobs: int = 1,
) -> int:
    """One job on many models, or what would be done to them."""
    from ..checkpoints.batch import clean_one, for_each, sort_out

    text = text_setup_from(args, stored.clip_skip)
    models = sort_out(found, stored, text.clip_skip)

    def clean(one: Candidate, stopping: threading.Event) -> Done:
        return clean_one(
            one, stored, text, lambda sentence: console.note(f"{one.name}: {sentence}"), stopping
        )

    work = _planner(stored, text) if args.dry_run else clean
    results = for_each(models, work, _teller(len(models), console), 1 if args.dry_run else jobs)
    return _sum_up(args, models, results, console)


def _teller(total: int, console: Console) -> Callable[[int, Candidate, Done], None]:
    def told(count: int, one: Candidate, done: Done) -> None:
        console.say(f"[{count}/{total}] {one.name}: {done.status}. {done.detail}")
        console.part(_plain_done(done))

    return told


def _sum_up(
    args: argparse.Namespace, models: Sequence[Candidate], results: Sequence[Done], console: Console
) -> int:
    console.say()
    rows = [
        (one.name, done.status, f"{done.seconds:.1f} s")
        for one, done in zip(models, results, strict=True)
    ]
    console.table(("Model", "status", "time"), rows)
    counts = {
        status: sum(done.status == status for done in results)
        for status in ("ready" if args.dry_run else "cleaned", "skipped", "failed")
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
    stored = _stored(args, console)
    outputs = outputs_from(args, console.note)
    from ..checkpoints.batch import find_models, sort_out
    from ..fleet.catalogue import Catalogue, Shadow, scratch_folder
    from ..fleet.ledger import open_ledger, read_ledger
    from ..fleet.scheduler import Cluster, Fleet
    from ..fleet.worker import Work
    from ..provenance import package_version

    text = text_setup_from(args, stored.clip_skip, here=False).elsewhere()
    work = Work(stored, text, args.threads or 1, args.scratch, not args.no_cache, package_version())
    which = {"recursive": args.recursive, "include": args.include, "exclude": args.exclude}
    with scratch_folder() as base:
        shadow = Shadow(base, args.folder, args.out)
        with shadow.speaking():
            shadow.fill(**which)
            found = find_models(shadow.folder, replace(outputs, folder=shadow.out), **which)
            catalogue = Catalogue(sort_out(found, stored, text.clip_skip), shadow)
        models = catalogue.models
        told, path = _teller(len(models), console), args.ledger or args.out / LEDGER
        if args.dry_run:
            results = Fleet(catalogue, work, read_ledger(path), told, console.note).plan()
        else:
            with open_ledger(path) as ledger:
                fleet = Fleet(catalogue, work, ledger, told, console.note)
                results = fleet.run(Cluster(args.address, args.jobs))
    return _sum_up(args, models, results, console)


def _planner(stored: StoredJob, text: TextSetup) -> Callable[[Candidate, threading.Event], Done]:
    """In the place of the work: what would be done. The disk must hold the results of all of
    them.
    """
    from ..checkpoints.batch import Done, finished
    from ..checkpoints.plan import plan_file, refuse_without_space

    plans: list[Plan] = []

    def look(one: Candidate, stopping: threading.Event) -> Done:
        if one.known is not None:
            return one.known
        try:
            if finished(one, stored, text.clip_skip):
                return Done(one.path, "skipped", "Already done.")
            plans.append(plan_file(one.path, stored.job, text, one.outputs, stored.strength))
            refuse_without_space(plans)
        except Exception as fault:
            return one.failed(fault)
        plan = plans[-1]
        what = (
            f"{plan.family}, {layers_in_words(plan)}; it would write about"
            f" {size_in_words(plan.size)}."
        )
        return Done(one.path, "ready", what, facts=plan.to_json())

    return look


def _plain_done(done: Done) -> dict[str, Any]:
    plain = {
        "model": str(done.model),
        "status": done.status,
        "detail": done.detail,
        "seconds": round(done.seconds, 3),
    }
    failed = {"error": {"code": done.code, "message": done.detail}} if done.code else {}
    return {**(done.facts or {}), **plain, **failed}


def add_demo(commands: Any) -> None:
    """Declares `demo`."""
    help = (
        "Erase a painter and a subject from a small model that comes with the package, and draw"
        " before and after."
    )
    parser = command(commands, "demo", run_demo, help)
    parser.add_argument(
        "--out", type=Path, default=Path("demo-out"), metavar="DIR", help="default: demo-out"
    )
    parser.add_argument(
        "--comfyui",
        type=Path,
        metavar="DIR",
        help="only put the model into this ComfyUI's models/checkpoints",
    )


def run_demo(args: argparse.Namespace, console: Console) -> int:
    """Everything in the folder of the demo is the demo's: it is overwritten."""
    from ..checkpoints.save import output_folder
    from ..demo import demo

    if args.comfyui is not None:
        return _into_comfyui(args.comfyui, console)
    with output_folder(args.out):
        outcome, drawn = demo.run_demo(args.out, note=console.note, progress=console.progress)
    console.say()
    show(outcome, console)
    console.say()
    console.say(f"Erased from {args.out / demo.MODEL}, a small model that draws:")
    console.say(
        f"  the painter {demo.PAINTER} (also called {demo.ALIAS}), and the subject {demo.SUBJECT}."
    )
    console.say(f"{len(drawn)} prompts were drawn before and after, with the same seeds: look at")
    console.say(f"  {outcome.files['pictures']}")
    console.say(f"  {outcome.files['report']}  (in a browser)")
    console.say("Then try:")
    console.say(
        f"  speed-erase verify {outcome.files['checkpoint']} --base {args.out / demo.MODEL}"
    )
    console.say("  speed-erase demo --comfyui DIR    to draw with it in ComfyUI")
    return 0


def _into_comfyui(folder: Path, console: Console) -> int:
    from ..demo.demo import place_in_comfyui

    path, new = place_in_comfyui(folder, console.progress)
    console.result({"checkpoint": str(path), "new": new})
    console.say(f"The model is in {path}." if new else f"The model was in {path} already.")
    console.say(
        "In ComfyUI, press R and choose it in Load Checkpoint: 128 x 128 pixels, euler, 12 steps,"
        " cfg 3."
    )
    return 0


def show(outcome: Erasure, console: Console) -> None:
    """The outcome for people, or for machines."""
    console.result(_plain(outcome))
    console.page(outcome.text())
    for product, path in outcome.files.items():
        size = f"  ({size_in_words(path.stat().st_size)})" if path.is_file() else ""
        console.say(f"{product:<10}  {path}{size}")
    if outcome.rounding is not None:
        console.say(
            f"Rounding to the file's own precision loses {outcome.rounding:.2%} of the edit."
        )
    console.say(f"Done in {outcome.seconds:.1f} s.")


def _plain(outcome: Erasure) -> dict[str, Any]:
    report, recipe, certificate = outcome.text_report, outcome.recipe, outcome.certificate
    assert report is not None and recipe is not None and certificate is not None
    return {
        "model": outcome.source,
        "family": outcome.architecture.name,
        "files": {product: str(path) for product, path in outcome.files.items()},
        "base_hash": recipe.base_hash,
        "lora_error": outcome.lora_error,
        "rounding": outcome.rounding,
        "notes": list(outcome.notes),
        "dropped": list(report.dropped),
        "unusable": list(report.unusable),
        "encoded": report.encoded,
        "reused": report.reused,
        "seconds": round(outcome.seconds, 3),
        "certificate": certificate.to_json(),
    }


def show_plan(plan: Plan, console: Console) -> None:
    """What would be done, for people or for machines."""
    for sentence in plan.notes:
        console.note(sentence)
    console.result({"dry_run": True, **plan.to_json()})
    console.say(f"{plan.model}: a {plan.family} model; {layers_in_words(plan)} would be edited.")
    for file, size in plan.reads.items():
        console.say(f"reads       {file}  ({size_in_words(size)})")
    rest = (
        ", which"
        if plan.cached is None
        else f", at least {plan.cached} of them from the cache; the rest"
    )
    console.say(
        f"encodes     up to {plan.texts} texts{rest} takes about {time_in_words(plan.seconds)}"
    )
    for product, (path, size) in plan.writes.items():
        console.say(f"{product:<10}  {path}  (about {size_in_words(size)})")
    console.say(f"{size_in_words(plan.free)} are free there. Nothing was written.")


def time_in_words(seconds: float) -> str:
    """In the largest unit that leaves two digits."""
    for unit, length in (("hours", 3600), ("minutes", 60)):
        if seconds >= 10 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def layers_in_words(plan: Plan) -> str:
    """How many layers would be edited."""
    return f"{plan.layers} layer{'' if plan.layers == 1 else 's'}"


def size_in_words(size: float) -> str:
    """A size in the unit that suits it."""
    for limit, unit in ((1e9, "GB"), (1e5, "MB")):
        if size >= limit:
            return f"{size / (1e9 if unit == 'GB' else 1e6):.1f} {unit}"
    return f"{size / 1e3:.1f} kB"
