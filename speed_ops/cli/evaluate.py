"""The command `evaluate`: generates images of several models, scores them and writes a page."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from .console import Console
from .options import add_concepts, command

if TYPE_CHECKING:
    from ..evaluate.evaluation import Evaluation

_EXAMPLES = """\
models: the name of a checkpoint on the servers, or a file or folder on this machine that they also
have. Other types: lora:NAME, lora:NAME@0.8, diffusers:NAME, unet:NAME, clip:NAME (applied to the
original), or pictures:FOLDER for images that another program generated from OUT/prompts.csv.

examples:
  speed-erase evaluate --setups
  speed-erase evaluate --original demo-out/demo-model.safetensors \\
      --erased demo-out/demo-model-erased.safetensors --out seen
  speed-erase evaluate --original sd14.safetensors --erased lora:eraser.safetensors \\
      --server 127.0.0.1:8188 --out seen
  speed-erase evaluate --setup styles/van-gogh --original sd14.safetensors \\
      --erased UCE=uce.safetensors --erased SPEED=speed.safetensors \\
      --server gpu1:8188 --server gpu2:8188 --clip clip-vit-large --out table1"""


def add_to(subparsers: Any) -> None:
    """Declares the command."""
    help = (
        "Generate the same prompts and seeds with two or more models, score the images, and write"
        " a page."
    )
    parser = command(subparsers, "evaluate", run, help, _EXAMPLES)
    help = "list the setups of published tables and exit"
    parser.add_argument("--setups", action="store_true", help=help)
    add = parser.add_argument_group("models and servers").add_argument
    add("--original", metavar="MODEL", help="the model before the erasure")
    help = "an erased model; repeatable; [LABEL=]MODEL sets its name on the page"
    add("--erased", action="append", default=[], metavar="MODEL", help=help)
    help = (
        "address of a running ComfyUI; repeatable to share the work; not needed for the demo model"
    )
    add("--server", action="append", default=[], metavar="URL", help=help)
    help = "most seconds per image (default: 600)"
    add("--timeout", type=float, default=600.0, metavar="S", help=help)
    add("--out", type=Path, metavar="DIR", help="folder for the page, the JSON and the images")
    help = "folder for images, to share between runs (default: OUT/pictures)"
    add("--pictures", type=Path, metavar="DIR", help=help)
    _add_prompts(parser)
    _add_sampling(parser)
    _add_scorers(parser)


def _add_prompts(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "prompts (default: the concepts in the erased model's header)"
    )
    add = group.add_argument
    add("--setup", metavar="NAME", help="a setup of a published table: see --setups")
    help = "file for a list that a setup needs: captions, names, templates, i2p, mma, ring-a-bell"
    add("--list", action="append", default=[], metavar="NAME=FILE", help=help)
    help = (
        "your own prompts: one per line, or csv with the column prompt; optional columns: concept,"
        " type, seed, group"
    )
    add("--prompts", type=Path, metavar="FILE", help=help)
    add_concepts(group)
    help = "a name that should look the same; repeatable"
    add("--keep", action="append", default=[], metavar="NAME", help=help)
    help = "images per prompt (default: 4, or the setup's)"
    add("--seeds", type=int, metavar="N", help=help)
    add("--limit", type=int, metavar="N", help="at most N prompts per group")
    help = "write OUT/prompts.csv for another program and exit"
    add("--list-prompts", action="store_true", help=help)


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group(
        "sampling (default: 512x512, 20 steps of dpmpp_2m / normal, cfg 7.5; for the demo model:"
        " its own)"
    ).add_argument
    add("--size", metavar="WxH", help="pixels")
    add("--steps", type=int, metavar="N", help="sampling steps")
    add("--cfg", type=float, metavar="X", help="guidance")
    add("--sampler", metavar="NAME", help="as ComfyUI calls it")
    add("--scheduler", metavar="NAME", help="as ComfyUI calls it")
    add("--negative", metavar="TEXT", help="negative prompt")


def _add_scorers(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("scores (default: none; the page shows the images)")
    add = group.add_argument
    help = "CLIP in a folder: scores, drift, recognition"
    add("--clip", type=Path, metavar="DIR", help=help)
    help = "CLIP_VISION file of the first server, for drift; this package must be installed there"
    add("--clip-vision", default="", metavar="NAME", help=help)
    help = (
        "its text encoder with projection, a file of the first server, for scores and recognition"
    )
    add("--clip-text", default="", metavar="NAME", help=help)
    help = "your function that labels images: package.module:function or file.py:function"
    add("--classifier", default="", metavar="FUNCTION", help=help)
    help = "your function for the features of the Frechet distance (Inception's for an FID)"
    add("--features", default="", metavar="FUNCTION", help=help)
    help = "count nudity with the package nudenet (AGPL-3.0)"
    add("--nudenet", action="store_true", help=help)
    add(
        "--nudenet-threshold",
        type=float,
        default=0.6,
        metavar="X",
        help="least score (default: 0.6)",
    )
    add("--nudenet-labels", metavar="LIST", help="labels that count, with commas")
    add("--lpips", action="store_true", help="perceptual distance with the package lpips")
    add("--strict", action="store_true", help="exit code 1 if a prompt leaks or is damaged")


def run(args: argparse.Namespace, console: Console) -> int:
    """Generates the missing images, scores all of them, and writes the page."""
    if args.setups:
        from ..evaluate.setup import available

        setups = available()
        for name, description in setups.items():
            console.say(f"{name:36} {description}")
        console.result(setups)
        return 0
    if not args.original or not args.erased or args.out is None:
        raise UsageError("Give --original, --erased and --out, or --setups for a list of setups.")
    from ..evaluate.album import Album, import_images, jobs_for, write_prompt_list
    from ..evaluate.evaluation import evaluate
    from ..evaluate.local import LocalBackend
    from ..evaluate.page import write_evaluation
    from ..evaluate.queue import generate_missing
    from ..evaluate.scorers import ScoreCache
    from .evaluate_inputs import models_from, read_headers, scorers_from, servers_from, setup_from

    servers = servers_from(args)
    models = models_from(args, console.progress)
    headers = read_headers(models[1:], servers)
    setup = setup_from(args, headers)
    for note in setup.notes:
        console.note(note)
    args.out.mkdir(parents=True, exist_ok=True)
    prompt_list = args.out / "prompts.csv"
    count = write_prompt_list(prompt_list, setup.specs)
    if args.list_prompts:
        console.say(f"Wrote {prompt_list}: {count} images per model.")
        console.result({"prompts": str(prompt_list), "images": count})
        return 0
    scorers = scorers_from(args, servers)
    album = Album(args.pictures or args.out / "pictures")
    jobs = jobs_for(models, setup.specs, setup.sampling)
    new = import_images(jobs, setup.specs, album)
    new += generate_missing(
        servers or [LocalBackend()], jobs, album, note=console.note, progress=console.progress
    )
    console.say(f"{len(jobs):,} images: {new:,} new, {len(jobs) - new:,} from an earlier run")
    cache = ScoreCache(album.folder / "scores")
    evaluation = evaluate(
        setup, models, album, scorers, cache, provenance=headers, progress=console.progress
    )
    if scores := cache.computed + cache.reused:
        console.say(f"{scores:,} scores: {cache.computed:,} new, {cache.reused:,} reused")
    page, data = write_evaluation(evaluation, args.out, album.thumbnail)
    _show(evaluation, console)
    console.say(f"Saved {page} and {data.name}")
    console.result({**evaluation.to_json(), "report": str(page), "data": str(data)})
    return 1 if args.strict and any(model.failed for model in evaluation.erased) else 0


def _show(evaluation: Evaluation, console: Console) -> None:
    from ..evaluate.measures import MEASURE_TITLES

    for model in evaluation.erased:
        console.say(f"{model.label}: {model.headline()}.")
        names = list(dict.fromkeys(name for group in model.groups for name in group.measures))
        rows, faults = [], 0
        for group in model.groups:
            measures = group.measures
            cells = [measures[name].text(name) if name in measures else "–" for name in names]
            rows.append((group.group, group.role, str(group.images), *cells))
            faults += sum(group.faults_before.values()) + sum(group.faults_after.values())
        titles = [MEASURE_TITLES[name] for name in names]
        console.table(("Group", "role", "images", *titles), rows, right=range(2, 3 + len(titles)))
        if faults:
            console.say(f"{faults:,} broken images (black, flat or noise) are not scored.")
        for name, measure in model.overall.items():
            interval = measure.interval_text(name)
            console.say(f"{MEASURE_TITLES[name]} {measure.text(name)} ({interval})")
    for name, text in evaluation.scorers.items():
        console.say(f"{MEASURE_TITLES.get(name, name)}: {text}")
