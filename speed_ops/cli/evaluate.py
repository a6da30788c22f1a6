"""The command that draws and judges: `evaluate`."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import FileError, InputError, UsageError
from ..text.concept_list import Concept
from ..text.kinds import KINDS
from .console import Console
from .options import command, concepts_from

if TYPE_CHECKING:
    from ..evaluate.findings import Judges
    from ..evaluate.painters import ComfyPainter, Model
    from ..evaluate.pictures import Album
    from ..evaluate.setup import Sampling, Setup
    from ..provenance import Provenance

_EXAMPLES = """\
models: the name of a checkpoint on the servers, or a file or folder of this machine that they have, too. Before other
kinds of names write lora:NAME, lora:NAME@0.8, diffusers:NAME, unet:NAME, clip:NAME (put on the original), or
pictures:FOLDER for pictures that another program drew from OUT/prompts.csv.

examples:
  speed-erase evaluate --setups
  speed-erase evaluate --original demo-out/demo-model.safetensors \\
      --erased demo-out/demo-model-erased.safetensors --out seen
  speed-erase evaluate --original sd14.safetensors --erased lora:eraser.safetensors --server 127.0.0.1:8188 --out seen
  speed-erase evaluate --setup styles/van-gogh --original sd14.safetensors --erased UCE=uce.safetensors \\
      --erased SPEED=speed.safetensors --server gpu1:8188 --server gpu2:8188 --clip clip-vit-large --out table1"""
_LABELLED = re.compile(r"(?P<label>[\w .()+/-]{1,40})=(?P<model>.+)")
_SIZE = re.compile(r"(\d{2,4})x(\d{2,4})")
_NEAR = 4
"""Kept names to draw where none are given: those that the certificate says lie nearest to what was
erased.
"""
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
    models = parser.add_argument_group("models and where they are drawn")
    models.add_argument("--original", metavar="MODEL", help="the model before the erasure")
    erased = "an erased model; repeatable, and [LABEL=]MODEL names it in the report"
    models.add_argument("--erased", action="append", default=[], metavar="MODEL", help=erased)
    server = (
        "address of a running ComfyUI; repeatable: the work is spread. Without it, the demo's model"
        " is drawn here"
    )
    models.add_argument("--server", action="append", default=[], metavar="URL", help=server)
    waiting = "seconds that a server may take for a picture (default: 600)"
    models.add_argument("--timeout", type=float, default=600.0, metavar="S", help=waiting)
    models.add_argument(
        "--out", type=Path, metavar="DIR", help="folder for the page, the JSON and the pictures"
    )
    elsewhere = "folder of pictures, to share between runs (default: OUT/pictures)"
    models.add_argument("--pictures", type=Path, metavar="DIR", help=elsewhere)
    _add_prompts(parser)
    _add_sampling(parser)
    _add_judges(parser)


def _add_prompts(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "what to draw (default: the concepts in the erased model's header)"
    )
    group.add_argument("--setup", metavar="NAME", help="one of the paper's setups: see --setups")
    lists = (
        "a list that a setup reads from where you have it: captions, names, templates, i2p, mma,"
        " ring-a-bell"
    )
    group.add_argument("--list", action="append", default=[], metavar="NAME=FILE", help=lists)
    own = (
        "prompts of your own: one a line, or csv with the columns prompt, and concept, type, seed,"
        " group if you like"
    )
    group.add_argument("--prompts", type=Path, metavar="FILE", help=own)
    concepts = 'what was erased: "name", "name -> anchor" or "name | alias -> anchor"; repeatable'
    group.add_argument("--concepts", action="append", default=[], metavar="TEXT", help=concepts)
    group.add_argument(
        "--concepts-file", action="append", default=[], type=Path, metavar="FILE", help="txt or csv"
    )
    group.add_argument(
        "--kind",
        choices=list(KINDS),
        default="style",
        help="what the concepts are (default: style)",
    )
    keep = "a name that must look as before; repeatable"
    group.add_argument("--keep", action="append", default=[], metavar="NAME", help=keep)
    seeds = "pictures of each prompt (default: 4, or the setup's)"
    group.add_argument("--seeds", type=int, metavar="N", help=seeds)
    group.add_argument("--limit", type=int, metavar="N", help="at most N prompts of each group")
    group.add_argument(
        "--list-prompts",
        action="store_true",
        help="write OUT/prompts.csv for another program, no more",
    )


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


def _add_judges(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("judges (default: none; the page shows the pictures)")
    group.add_argument(
        "--clip", type=Path, metavar="DIR", help="CLIP in a folder: scores, drift, recognition"
    )
    vision = "CLIP_VISION file of the first server, for drift; this package must be installed there"
    group.add_argument("--clip-vision", default="", metavar="NAME", help=vision)
    text = (
        "text encoder file of the first server that belongs to it and has its projection, for"
        " scores and recognition"
    )
    group.add_argument("--clip-text", default="", metavar="NAME", help=text)
    classifier = (
        "your function that names what pictures show: package.module:function or file.py:function"
    )
    group.add_argument("--classifier", default="", metavar="FUNCTION", help=classifier)
    features = "your function for the features of the Frechet distance (Inception's for an FID)"
    group.add_argument("--features", default="", metavar="FUNCTION", help=features)
    group.add_argument(
        "--nudenet", action="store_true", help="count nudity with the package nudenet (AGPL-3.0)"
    )
    group.add_argument(
        "--nudenet-threshold", type=float, metavar="X", help="least score (default: 0.6)"
    )
    group.add_argument("--nudenet-labels", metavar="LIST", help="labels that count, with commas")
    group.add_argument(
        "--lpips", action="store_true", help="perceptual distance with the package lpips"
    )
    group.add_argument(
        "--strict", action="store_true", help="exit code 1 when a prompt leaks or is damaged"
    )


def run_evaluate(args: argparse.Namespace, console: Console) -> int:
    """Draws what is missing, judges everything, and writes the page."""
    from ..evaluate.setup import available

    if args.setups:
        known = available()
        for name, what in known.items():
            console.say(f"{name:36} {what}")
        console.result(known)
        return 0
    if not args.original or not args.erased or args.out is None:
        raise UsageError("Give --original, --erased and --out, or --setups for a list of setups.")
    from ..evaluate.painters import BoxPainter, ComfyPainter
    from ..evaluate.pictures import Album, bring_in, draw_missing, jobs_for, numbered, write_list

    servers = [ComfyPainter(url, args.timeout) for url in args.server]
    original, erased = _models(args, console)
    said = {model.label: _provenance(model, servers) for model in erased}
    setup = _setup(args, said, console)
    setup = replace(setup, sampling=_sampling(args, setup.sampling))
    args.out.mkdir(parents=True, exist_ok=True)
    write_list(args.out / "prompts.csv", setup.shots)
    if args.list_prompts:
        console.say(
            f"Wrote {args.out / 'prompts.csv'}: {len(numbered(setup.shots))} pictures for each"
            " model."
        )
        console.result(
            {"prompts": str(args.out / "prompts.csv"), "pictures": len(numbered(setup.shots))}
        )
        return 0
    judges = _judges(args, servers)
    album = Album(args.pictures or args.out / "pictures")
    jobs = jobs_for([original, *erased], setup.shots, setup.sampling)
    new = bring_in(jobs, numbered(setup.shots), album)
    new += draw_missing(
        servers or [BoxPainter()], jobs, album, note=console.note, progress=console.progress
    )
    console.say(f"{len(jobs)} pictures: {new} new, {len(jobs) - new} from an earlier run.")
    return _judge_and_write(args, setup, original, erased, album, judges, said, console)


def _judge_and_write(
    args: argparse.Namespace,
    setup: Setup,
    original: Model,
    erased: Sequence[Model],
    album: Album,
    judges: Judges,
    said: Mapping[str, Provenance | None],
    console: Console,
) -> int:
    from ..evaluate.findings import evaluate
    from ..evaluate.judges import Judgements
    from ..evaluate.page import evaluation_page
    from ..files.atomic import write_bytes

    headers = {label: _header(found) for label, found in said.items() if found is not None}
    known = Judgements(album.folder / "judged")
    findings = evaluate(
        setup, original, erased, album, judges, known, headers=headers, progress=console.progress
    )
    if known.new or known.kept:
        console.say(
            f"{known.new + known.kept} judgements: {known.new} new, {known.kept} from an earlier"
            " run."
        )
    page, data = args.out / "report.html", args.out / "evaluation.json"
    write_bytes(data, json.dumps(findings, indent=1, ensure_ascii=False).encode(), force=True)
    write_bytes(page, evaluation_page(findings, album.thumbnail).encode(), force=True)
    _show(findings, console)
    console.say(f"report  {page}")
    console.say(f"data    {data}")
    console.result({**findings, "report": str(page), "data": str(data)})
    verdicts = [findings["results"][model.label]["verdicts"] for model in erased]
    wrong = any(found.get("leaking") or found.get("damaged") for found in verdicts)
    return 1 if args.strict and wrong else 0


def _models(args: argparse.Namespace, console: Console) -> tuple[Model, list[Model]]:
    from ..evaluate.findings import ORIGINAL
    from ..evaluate.painters import parse_model

    original = parse_model(args.original, ORIGINAL, None, console.progress)
    found: list[Model] = []
    for number, text in enumerate(args.erased, 1):
        match = _LABELLED.fullmatch(text)
        label = (
            match["label"] if match else "erased" if len(args.erased) == 1 else f"erased {number}"
        )
        model = parse_model(match["model"] if match else text, label, original, console.progress)
        if label == ORIGINAL or label in [one.label for one in found]:
            raise UsageError(f"Two models are called {label!r}: give each --erased another LABEL=.")
        found.append(model)
    return original, found


def _provenance(model: Model, servers: Sequence[ComfyPainter]) -> Provenance | None:
    """What the file of a model says about its erasure; None where it is not ours, or not to be
    read.
    """
    from ..files.checkpoint import Checkpoint
    from ..provenance import read_provenance

    if model.kind == "pictures":
        return None
    metadata = (
        Checkpoint.open(model.file).metadata
        if model.file
        else servers[0].header(model)
        if servers
        else {}
    )
    try:
        return read_provenance(metadata, model.name)
    except FileError:
        return None


def _header(found: Provenance) -> dict[str, Any]:
    concepts = [vars(one) for one in found.recipe.concepts] if found.recipe is not None else []
    return {"certificate": found.certificate, "concepts": concepts}


def _setup(
    args: argparse.Namespace, said: Mapping[str, Provenance | None], console: Console
) -> Setup:
    from ..evaluate.setup import setup_of_concepts, setup_of_file, setup_of_paper

    if sum(bool(one) for one in (args.setup, args.prompts)) > 1:
        raise UsageError("Give --setup or --prompts, not both.")
    seeds = args.seeds if args.seeds is not None else _SEEDS
    if seeds < 1 or (args.limit is not None and args.limit < 1):
        raise UsageError("--seeds and --limit are at least 1.")
    if args.setup:
        setup = setup_of_paper(args.setup, _lists(args)).limited(args.limit, args.seeds)
    else:
        concepts, near = _concepts(args, said)
        if args.prompts:
            setup = setup_of_file(args.prompts, concepts, seeds).limited(args.limit, None)
        else:
            setup = setup_of_concepts(concepts, args.keep or near, seeds).limited(args.limit, None)
    for sentence in setup.notes:
        console.note(sentence)
    return setup


def _sampling(args: argparse.Namespace, usual: Sampling) -> Sampling:
    """How to draw: what the setup says, or what the model in the box draws well with; and what is
    typed.
    """
    from ..demo.autoencoder import CELL
    from ..evaluate.painters import BOX_SAMPLING

    given = {name: value for name in ("steps", "cfg", "sampler", "scheduler", "negative")
             if (value := getattr(args, name)) is not None}  # fmt: skip
    if args.size:
        found = _SIZE.fullmatch(args.size)
        if not found:
            raise UsageError(f"--size is {args.size!r}: write it as 512x512.")
        given |= {"width": int(found[1]), "height": int(found[2])}
    if args.server:
        return replace(usual, **given)
    here = replace(BOX_SAMPLING, **given)
    if (here.sampler, here.scheduler) != (BOX_SAMPLING.sampler, BOX_SAMPLING.scheduler):
        raise UsageError(
            "Without --server, pictures are drawn with the sampler euler and the scheduler normal"
            " alone."
        )
    if here.width % (2 * CELL) or here.height % (2 * CELL):
        raise UsageError(
            f"Without --server, the sides of a picture are multiples of {2 * CELL} pixels."
        )
    return here


def _concepts(
    args: argparse.Namespace, said: Mapping[str, Provenance | None]
) -> tuple[tuple[Concept, ...], list[str]]:
    """What was erased, as typed or as the first header that tells it; and names that lie near
    it.
    """
    if args.concepts or args.concepts_file:
        return tuple(concepts_from(args)), []
    for found in said.values():
        if found is None or found.recipe is None:
            continue
        if found.recipe.redacted:
            raise InputError(
                "The erased model hides the names in its header: give them with --concepts."
            )
        concepts = tuple(
            Concept(one.target, one.anchor, one.kind, one.aliases) for one in found.recipe.concepts
        )
        curve = found.certificate.get("curve")
        listed = curve.get("in_the_way") if isinstance(curve, dict) else None
        near = (
            [str(one[0]) for one in listed if isinstance(one, list) and one]
            if isinstance(listed, list)
            else []
        )
        return concepts, near[:_NEAR]
    if args.prompts:
        return (), []
    raise UsageError("No header says what was erased: give --concepts, --prompts or --setup.")


def _lists(args: argparse.Namespace) -> dict[str, Path]:
    found = {}
    for text in args.list:
        name, equals, file = text.partition("=")
        if not equals or not file:
            raise UsageError(f"--list is {text!r}: write NAME=FILE.")
        found[name] = Path(file)
    return found


def _judges(args: argparse.Namespace, servers: Sequence[ComfyPainter]) -> Judges:
    from ..evaluate.findings import Judges
    from ..evaluate.judges import (
        NUDENET_LABELS,
        NUDENET_THRESHOLD,
        ClipFolder,
        ComfyClip,
        GivenClassifier,
        GivenSeer,
        Lpips,
        NudeNet,
        Seer,
    )

    clip: Seer | None = None
    if args.clip and args.clip_vision:
        raise UsageError("Give --clip or --clip-vision, not both.")
    if args.clip_text and not args.clip_vision:
        raise UsageError("--clip-text needs --clip-vision.")
    if args.clip:
        clip = ClipFolder(args.clip)
    elif args.clip_vision:
        if not servers:
            raise UsageError("--clip-vision is a file of a server: give --server.")
        clip = ComfyClip(servers[0], args.clip_vision, args.clip_text)
    labels = tuple(args.nudenet_labels.split(",")) if args.nudenet_labels else NUDENET_LABELS
    threshold = NUDENET_THRESHOLD if args.nudenet_threshold is None else args.nudenet_threshold
    return Judges(
        clip=clip,
        features=GivenSeer(args.features) if args.features else None,
        classifier=GivenClassifier(args.classifier) if args.classifier else None,
        nudity=NudeNet(threshold, labels) if args.nudenet else None,
        lpips=Lpips() if args.lpips else None,
    )


def _show(findings: Mapping[str, Any], console: Console) -> None:
    from ..evaluate.page import figure_text, headline, interval_text

    for label, result in list(findings["results"].items())[1:]:
        console.say(f"{label}: {headline(result)}.")
        words = list(dict.fromkeys(word for one in result["groups"] for word in one["measures"]))
        rows = []
        for one in result["groups"]:
            figures = (figure_text(one["measures"].get(word), word) for word in words)
            rows.append((one["group"], one["role"], str(one["pictures"]), *figures))
        console.table(("Group", "role", "pictures", *words), rows)
        faults = sum(
            sum(found.values()) for one in result["groups"] for found in one["faults"].values()
        )
        if faults:
            console.say(f"{faults} black, flat or broken frames were counted apart.")
        for word, figure in result["overall"].items():
            if figure is not None:
                console.say(f"{word} {figure_text(figure, word)} ({interval_text(figure, word)})")
    for word, text in findings["judges"].items():
        console.say(f"{word}: {text}")
