"""The command `evaluate`: generates images of several models, scores them and writes a page."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import FileError, InputError, UsageError
from ..text.concept_list import Concept
from ..text.kinds import KINDS
from .console import Console
from .options import command, concepts_from

if TYPE_CHECKING:
    from ..evaluate.backend import ModelRef
    from ..evaluate.client import ComfyClient
    from ..evaluate.results import Evaluation, ModelResult
    from ..evaluate.scorers import FeatureExtractor, Scorers
    from ..evaluate.setup import Sampling, Setup
    from ..provenance import Provenance

_EXAMPLES = """\
models: the name of a checkpoint on the servers, or a file or folder of this machine that they have,
too. Before other kinds of names write lora:NAME, lora:NAME@0.8, diffusers:NAME, unet:NAME,
clip:NAME (put on the original), or pictures:FOLDER for pictures that another program drew from
OUT/prompts.csv.

examples:
  speed-erase evaluate --setups
  speed-erase evaluate --original demo-out/demo-model.safetensors \\
      --erased demo-out/demo-model-erased.safetensors --out seen
  speed-erase evaluate --original sd14.safetensors --erased lora:eraser.safetensors \\
      --server 127.0.0.1:8188 --out seen
  speed-erase evaluate --setup styles/van-gogh --original sd14.safetensors \\
      --erased UCE=uce.safetensors --erased SPEED=speed.safetensors \\
      --server gpu1:8188 --server gpu2:8188 --clip clip-vit-large --out table1"""
_LABELED = re.compile(r"(?P<label>[\w .()+/-]{1,40})=(?P<model>.+)")
_SIZE = re.compile(r"(\d{2,4})x(\d{2,4})")
_NEIGHBORS = 4
"""Kept names to generate by default: those nearest to what was erased, by the certificate."""
_SEEDS = 4


def add_to(subparsers: Any) -> None:
    """Declares the command."""
    help = (
        "Draw the same prompts and seeds with two or more models, judge the pictures, and write a"
        " page about it."
    )
    parser = command(subparsers, "evaluate", run_evaluate, help, _EXAMPLES)
    parser.add_argument(
        "--setups", action="store_true", help="list the paper's setups and do no more"
    )
    group = parser.add_argument_group("models and where they are drawn")
    group.add_argument("--original", metavar="MODEL", help="the model before the erasure")
    text = "an erased model; repeatable, and [LABEL=]MODEL names it in the report"
    group.add_argument("--erased", action="append", default=[], metavar="MODEL", help=text)
    text = (
        "address of a running ComfyUI; repeatable: the work is spread. Without it, the demo's model"
        " is drawn here"
    )
    group.add_argument("--server", action="append", default=[], metavar="URL", help=text)
    text = "seconds that a server may take for a picture (default: 600)"
    group.add_argument("--timeout", type=float, default=600.0, metavar="S", help=text)
    text = "folder for the page, the JSON and the pictures"
    group.add_argument("--out", type=Path, metavar="DIR", help=text)
    text = "folder of pictures, to share between runs (default: OUT/pictures)"
    group.add_argument("--pictures", type=Path, metavar="DIR", help=text)
    _add_prompts(parser)
    _add_sampling(parser)
    _add_scorers(parser)


def _add_prompts(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "what to draw (default: the concepts in the erased model's header)"
    )
    group.add_argument("--setup", metavar="NAME", help="one of the paper's setups: see --setups")
    text = (
        "a list that a setup reads from where you have it: captions, names, templates, i2p, mma,"
        " ring-a-bell"
    )
    group.add_argument("--list", action="append", default=[], metavar="NAME=FILE", help=text)
    text = (
        "prompts of your own: one a line, or csv with the columns prompt, and concept, type, seed,"
        " group if you like"
    )
    group.add_argument("--prompts", type=Path, metavar="FILE", help=text)
    text = 'what was erased: "name", "name -> anchor" or "name | alias -> anchor"; repeatable'
    options: dict[str, Any] = {"action": "append", "default": []}
    group.add_argument("--concepts", metavar="TEXT", help=text, **options)
    group.add_argument("--concepts-file", type=Path, metavar="FILE", help="txt or csv", **options)
    text = "what the concepts are (default: style)"
    group.add_argument("--kind", choices=list(KINDS), default="style", help=text)
    text = "a name that must look as before; repeatable"
    group.add_argument("--keep", metavar="NAME", help=text, **options)
    text = "pictures of each prompt (default: 4, or the setup's)"
    group.add_argument("--seeds", type=int, metavar="N", help=text)
    group.add_argument("--limit", type=int, metavar="N", help="at most N prompts of each group")
    text = "write OUT/prompts.csv for another program, no more"
    group.add_argument("--list-prompts", action="store_true", help=text)


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "how to draw (default: 512x512, 20 steps of dpmpp_2m / normal, guidance 7.5; without"
        " --server the demo's)"
    )
    group.add_argument("--size", metavar="WxH", help="pixels")
    group.add_argument("--steps", type=int, metavar="N", help="sampling steps")
    group.add_argument("--cfg", type=float, metavar="X", help="guidance")
    group.add_argument("--sampler", metavar="NAME", help="as ComfyUI calls it")
    group.add_argument("--scheduler", metavar="NAME", help="as ComfyUI calls it")
    group.add_argument("--negative", metavar="TEXT", help="negative prompt")


def _add_scorers(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("judges (default: none; the page shows the pictures)")
    text = "CLIP in a folder: scores, drift, recognition"
    group.add_argument("--clip", type=Path, metavar="DIR", help=text)
    text = "CLIP_VISION file of the first server, for drift; this package must be installed there"
    group.add_argument("--clip-vision", default="", metavar="NAME", help=text)
    text = (
        "text encoder file of the first server that belongs to it and has its projection, for"
        " scores and recognition"
    )
    group.add_argument("--clip-text", default="", metavar="NAME", help=text)
    text = (
        "your function that names what pictures show: package.module:function or file.py:function"
    )
    group.add_argument("--classifier", default="", metavar="FUNCTION", help=text)
    text = "your function for the features of the Frechet distance (Inception's for an FID)"
    group.add_argument("--features", default="", metavar="FUNCTION", help=text)
    text = "count nudity with the package nudenet (AGPL-3.0)"
    group.add_argument("--nudenet", action="store_true", help=text)
    text = "least score (default: 0.6)"
    group.add_argument("--nudenet-threshold", type=float, metavar="X", help=text)
    group.add_argument("--nudenet-labels", metavar="LIST", help="labels that count, with commas")
    text = "perceptual distance with the package lpips"
    group.add_argument("--lpips", action="store_true", help=text)
    text = "exit code 1 when a prompt leaks or is damaged"
    group.add_argument("--strict", action="store_true", help=text)


def run_evaluate(args: argparse.Namespace, console: Console) -> int:
    """Generates the missing images, scores all of them, and writes the page."""
    from ..evaluate.setup import available

    if args.setups:
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
    from ..evaluate.queue import generate_missing
    from ..evaluate.scorers import ScoreCache

    servers = _servers(args)
    models = _models(args, console)
    provenance = _provenance(models[1:], servers)
    setup = _setup(args, provenance)
    setup = replace(setup, sampling=_sampling(args, setup.sampling))
    for note in setup.notes:
        console.note(note)
    args.out.mkdir(parents=True, exist_ok=True)
    prompt_list = args.out / "prompts.csv"
    count = write_prompt_list(prompt_list, setup.specs)
    if args.list_prompts:
        console.say(f"Wrote {prompt_list}: {count} pictures for each model.")
        console.result({"prompts": str(prompt_list), "images": count})
        return 0
    scorers = _scorers(args, servers)
    album = Album(args.pictures or args.out / "pictures")
    jobs = jobs_for(models, setup.specs, setup.sampling)
    new = import_images(jobs, setup.specs, album)
    with _server_advice():
        new += generate_missing(
            servers or [LocalBackend()], jobs, album, note=console.note, progress=console.progress
        )
    console.say(f"{len(jobs)} pictures: {new} new, {len(jobs) - new} from an earlier run.")
    cache = ScoreCache(album.folder / "scores")
    evaluation = evaluate(
        setup, models, album, scorers, cache, provenance=provenance, progress=console.progress
    )
    if scores := cache.computed + cache.reused:
        console.say(
            f"{scores} judgements: {cache.computed} new, {cache.reused} from an earlier run."
        )
    _write(evaluation, args.out, album.thumbnail, console)
    return 1 if args.strict and any(model.failed for model in evaluation.erased) else 0


def _servers(args: argparse.Namespace) -> list[ComfyClient]:
    if not args.server:
        return []  # and no need for the packages of a client
    from ..evaluate.client import ComfyClient

    return [ComfyClient(url, args.timeout) for url in args.server]


@contextmanager
def _server_advice() -> Iterator[None]:
    """Names the flag that helps where this machine cannot generate an image."""
    from ..evaluate.backend import NeedsServer

    try:
        yield
    except NeedsServer as error:
        raise InputError(f"{error} Give --server to draw other models.", **error.data) from error


def _models(args: argparse.Namespace, console: Console) -> list[ModelRef]:
    """The original, then the erased models."""
    from ..evaluate.backend import parse_model
    from ..evaluate.evaluation import ORIGINAL

    models = [parse_model(args.original, ORIGINAL, None, console.progress)]
    for number, text in enumerate(args.erased, 1):
        match = _LABELED.fullmatch(text)
        label = "erased" if len(args.erased) == 1 else f"erased {number}"
        if match:
            label, text = match["label"], match["model"]
        if label in [model.label for model in models]:
            raise UsageError(f"Two models are called {label!r}: give each --erased another LABEL=.")
        models.append(parse_model(text, label, models[0], console.progress))
    return models


def _provenance(
    models: Sequence[ModelRef], servers: Sequence[ComfyClient]
) -> dict[str, Provenance]:
    """Label -> the header of the model's file, where it is ours and can be read."""
    from ..files.checkpoint import Checkpoint
    from ..provenance import read_provenance

    headers: dict[str, Provenance] = {}
    for model in models:
        if model.kind == "pictures":
            continue
        metadata: Mapping[str, str] = {}
        if model.file:
            metadata = Checkpoint.open(model.file).metadata
        elif servers:
            metadata = servers[0].metadata(model)
        try:
            header = read_provenance(metadata, model.name)
        except FileError:
            continue
        if header is not None:
            headers[model.label] = header
    return headers


def _setup(args: argparse.Namespace, provenance: Mapping[str, Provenance]) -> Setup:
    from ..evaluate.setup import setup_of_concepts, setup_of_file, setup_of_paper

    if args.setup and args.prompts:
        raise UsageError("Give --setup or --prompts, not both.")
    seeds = args.seeds if args.seeds is not None else _SEEDS
    if seeds < 1 or (args.limit is not None and args.limit < 1):
        raise UsageError("--seeds and --limit are at least 1.")
    if args.setup:
        setup = setup_of_paper(args.setup, _lists(args)).limited(args.limit, args.seeds)
        notes = (*setup.notes, *_list_notes(setup.missing_lists))
        return replace(setup, notes=notes)
    concepts, neighbors = _concepts(args, provenance)
    if args.prompts:
        setup = setup_of_file(args.prompts, concepts, seeds)
    else:
        setup = setup_of_concepts(concepts, args.keep or neighbors, seeds)
    return setup.limited(args.limit, None)


def _list_notes(missing: Mapping[str, str]) -> Iterator[str]:
    """How to supply the lists that a setup did not get."""
    for name, group in missing.items():
        if group:
            yield f"{group} was left out: give its prompts with --list {name}=FILE."
        else:
            yield f"The {name} are ours: give the paper's with --list {name}=FILE."


def _sampling(args: argparse.Namespace, default: Sampling) -> Sampling:
    """The setup's settings, or without a server the demo model's; flags override both."""
    from ..demo.autoencoder import CELL
    from ..evaluate.local import LOCAL_SAMPLING

    names = ("steps", "cfg", "sampler", "scheduler", "negative")
    changes = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if args.size:
        match = _SIZE.fullmatch(args.size)
        if not match:
            raise UsageError(f"--size is {args.size!r}: write it as 512x512.")
        changes |= {"width": int(match[1]), "height": int(match[2])}
    if args.server:
        return replace(default, **changes)
    sampling = replace(LOCAL_SAMPLING, **changes)
    if (sampling.sampler, sampling.scheduler) != (LOCAL_SAMPLING.sampler, LOCAL_SAMPLING.scheduler):
        raise UsageError(
            "Without --server, pictures are drawn with the sampler euler and the scheduler normal"
            " alone."
        )
    if sampling.width % (2 * CELL) or sampling.height % (2 * CELL):
        raise UsageError(
            f"Without --server, the sides of a picture are multiples of {2 * CELL} pixels."
        )
    return sampling


def _concepts(
    args: argparse.Namespace, provenance: Mapping[str, Provenance]
) -> tuple[tuple[Concept, ...], list[str]]:
    """What was erased, as typed or from the first header that records it; and names near it."""
    if args.concepts or args.concepts_file:
        return tuple(concepts_from(args)), []
    for header in provenance.values():
        if header.recipe is None:
            continue
        if not header.recipe.has_names:
            raise InputError(
                "The erased model hides the names in its header: give them with --concepts."
            )
        concepts = tuple(
            Concept(concept.target, concept.anchor, concept.kind, concept.aliases)
            for concept in header.recipe.concepts
        )
        curve = header.certificate.get("curve")
        listed = curve.get("in_the_way") if isinstance(curve, dict) else None
        rows = listed if isinstance(listed, list) else []
        neighbors = [str(row[0]) for row in rows if isinstance(row, list) and row]
        return concepts, neighbors[:_NEIGHBORS]
    if args.prompts:
        return (), []
    raise UsageError("No header says what was erased: give --concepts, --prompts or --setup.")


def _lists(args: argparse.Namespace) -> dict[str, Path]:
    lists = {}
    for text in args.list:
        name, _, file = text.partition("=")
        if not file:
            raise UsageError(f"--list is {text!r}: write NAME=FILE.")
        lists[name] = Path(file)
    return lists


def _scorers(args: argparse.Namespace, servers: Sequence[ComfyClient]) -> Scorers:
    from ..evaluate import scorers

    labels = args.nudenet_labels
    threshold = args.nudenet_threshold
    return scorers.Scorers(
        clip=_clip(args, servers),
        features=scorers.UserFeatures(args.features) if args.features else None,
        classifier=scorers.UserClassifier(args.classifier) if args.classifier else None,
        nudity=scorers.NudeNet(
            scorers.NUDENET_THRESHOLD if threshold is None else threshold,
            tuple(labels.split(",")) if labels else scorers.NUDENET_LABELS,
        )
        if args.nudenet
        else None,
        lpips=scorers.Lpips() if args.lpips else None,
    )


def _clip(args: argparse.Namespace, servers: Sequence[ComfyClient]) -> FeatureExtractor | None:
    from ..evaluate.scorers import LocalClip

    if args.clip and args.clip_vision:
        raise UsageError("Give --clip or --clip-vision, not both.")
    if args.clip_text and not args.clip_vision:
        raise UsageError("--clip-text needs --clip-vision.")
    if args.clip_vision:
        if not servers:
            raise UsageError("--clip-vision is a file of a server: give --server.")
        from ..evaluate.server_clip import ServerClip

        return ServerClip(servers[0], args.clip_vision, args.clip_text)
    return LocalClip(args.clip) if args.clip else None


def _write(
    evaluation: Evaluation, folder: Path, thumbnail: Callable[[str], str], console: Console
) -> None:
    """Writes the page and the JSON file, and prints the measures."""
    from ..evaluate.page import evaluation_page
    from ..evaluate.results import MEASURE_TITLES
    from ..files.atomic import write_bytes

    page, data = folder / "report.html", folder / "evaluation.json"
    value = evaluation.to_json()
    write_bytes(data, json.dumps(value, indent=1, ensure_ascii=False).encode(), force=True)
    write_bytes(page, evaluation_page(evaluation, thumbnail).encode(), force=True)
    for model in evaluation.erased:
        _show(model, console)
    for name, text in evaluation.scorers.items():
        console.say(f"{MEASURE_TITLES.get(name, name)}: {text}")
    console.say(f"report  {page}")
    console.say(f"data    {data}")
    console.result({**value, "report": str(page), "data": str(data)})


def _show(model: ModelResult, console: Console) -> None:
    from ..evaluate.results import MEASURE_TITLES

    console.say(f"{model.label}: {model.headline()}.")
    names = list(dict.fromkeys(name for group in model.groups for name in group.measures))
    rows = []
    for group in model.groups:
        measures = [group.measures.get(name) for name in names]
        cells = [
            measure.text(name) if measure else "–"
            for name, measure in zip(names, measures, strict=True)
        ]
        rows.append((group.group, group.role, str(group.images), *cells))
    titles = [MEASURE_TITLES[name] for name in names]
    console.table(("Group", "role", "pictures", *titles), rows)
    faults = sum(
        sum(group.faults_before.values()) + sum(group.faults_after.values())
        for group in model.groups
    )
    if faults:
        console.say(f"{faults} black, flat or broken frames were counted apart.")
    for name, measure in model.overall.items():
        interval = measure.interval_text(name)
        console.say(f"{MEASURE_TITLES[name]} {measure.text(name)} ({interval})")
