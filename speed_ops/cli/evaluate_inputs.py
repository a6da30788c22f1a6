"""What the flags of `evaluate` ask for: models, prompts, settings and scorers."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import FileError, InputError, UsageError
from ..evaluate.backend import ORIGINAL, ModelRef, parse_model
from ..evaluate.local import LOCAL_SAMPLING, check_sampling
from ..evaluate.scorers import (
    NUDENET_LABELS,
    Scorer,
    Scorers,
    local_clip,
    nudenet,
    perceptual_distance,
    user_classifier,
    user_features,
)
from ..evaluate.setup import Sampling, Setup, setup_of_concepts, setup_of_file, setup_of_paper
from ..files.checkpoint import Checkpoint
from ..progress import Progress
from ..provenance import Provenance, read_provenance
from ..text.concept_list import Concept
from .options import concepts_from

if TYPE_CHECKING:
    from ..evaluate.client import ComfyClient

_LABELED = re.compile(r"(?P<label>[\w .()+/-]{1,40})=(?P<model>.+)")
_SIZE = re.compile(r"(\d{2,4})x(\d{2,4})")
_NEIGHBORS = 4
"""Kept names to generate by default: those nearest to what was erased, by the certificate."""
_SEEDS = 4


def servers_from(args: argparse.Namespace) -> list[ComfyClient]:
    """The servers; without any, the packages of a client need not be installed."""
    if not args.server:
        return []
    from ..evaluate.client import ComfyClient

    return [ComfyClient(url, args.timeout) for url in args.server]


def models_from(args: argparse.Namespace, progress: Progress) -> list[ModelRef]:
    """The original, then the erased models."""
    models = [parse_model(args.original, ORIGINAL, None, progress)]
    for number, text in enumerate(args.erased, 1):
        label = "erased" if len(args.erased) == 1 else f"erased {number}"
        if match := _LABELED.fullmatch(text):
            label, text = match["label"], match["model"]
        if label in [model.label for model in models]:
            raise UsageError(f"Two models are called {label!r}. Give each --erased another LABEL=.")
        models.append(parse_model(text, label, models[0], progress))
    return models


def read_headers(
    models: Sequence[ModelRef], servers: Sequence[ComfyClient]
) -> dict[str, Provenance]:
    """Label -> the header of the model's file, where it is ours and can be read."""
    headers: dict[str, Provenance] = {}
    for model in models:
        metadata: Mapping[str, str] = {}
        if model.file and model.kind != "pictures":
            metadata = Checkpoint.open(model.file).metadata
        elif servers and model.kind != "pictures":
            metadata = servers[0].metadata(model)
        try:
            header = read_provenance(metadata, model.name)
        except FileError:
            continue
        if header is not None:
            headers[model.label] = header
    return headers


def setup_from(args: argparse.Namespace, headers: Mapping[str, Provenance]) -> Setup:
    """What to generate, and how; `headers` are those of the erased models."""
    if args.setup and args.prompts:
        raise UsageError("Give --setup or --prompts, not both.")
    seeds = args.seeds if args.seeds is not None else _SEEDS
    if seeds < 1 or (args.limit is not None and args.limit < 1):
        raise UsageError("--seeds or --limit is below 1. Use 1 or more.")
    if args.setup:
        setup = setup_of_paper(args.setup, _lists(args)).limited(args.limit, args.seeds)
        notes = list(setup.notes)
        for name, group in setup.missing_lists.items():
            if group:
                notes.append(f"{group} was left out. Give its prompts with --list {name}=FILE.")
            else:
                notes.append(f"The {name} are ours. Give the paper's with --list {name}=FILE.")
        setup = replace(setup, notes=tuple(notes))
    else:
        concepts, neighbors = _concepts(args, headers)
        if args.prompts:
            setup = setup_of_file(args.prompts, concepts, seeds)
        else:
            setup = setup_of_concepts(concepts, args.keep or neighbors, seeds)
        setup = setup.limited(args.limit, None)
    return replace(setup, sampling=_sampling(args, setup.sampling))


def _lists(args: argparse.Namespace) -> dict[str, Path]:
    lists = {}
    for text in args.list:
        name, _, file = text.partition("=")
        if not file:
            raise UsageError(f"--list is {text!r}. Write NAME=FILE.")
        lists[name] = Path(file)
    return lists


def _sampling(args: argparse.Namespace, default: Sampling) -> Sampling:
    """The setup's settings, or without a server the demo model's; flags override both."""
    names = ("steps", "cfg", "sampler", "scheduler", "negative")
    changes = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if args.size:
        match = _SIZE.fullmatch(args.size)
        if not match:
            raise UsageError(f"--size is {args.size!r}. Write it as 512x512.")
        changes |= {"width": int(match[1]), "height": int(match[2])}
    if args.server:
        return replace(default, **changes)
    return check_sampling(replace(LOCAL_SAMPLING, **changes))


def _concepts(
    args: argparse.Namespace, headers: Mapping[str, Provenance]
) -> tuple[tuple[Concept, ...], list[str]]:
    """What was erased, as typed or from the first header that records it; and names near it."""
    if args.concepts or args.concepts_file:
        return tuple(concepts_from(args)), []
    for header in headers.values():
        if header.recipe is None:
            continue
        if not header.recipe.has_names:
            raise InputError(
                "The erased model hides the names in its header. Give them with --concepts."
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
    raise UsageError(
        "No file has a header with what was erased. Give --concepts, --prompts or --setup."
    )


def scorers_from(args: argparse.Namespace, servers: Sequence[ComfyClient]) -> Scorers:
    """What scores the images."""
    nudity = None
    if args.nudenet:
        labels = args.nudenet_labels.split(",") if args.nudenet_labels else NUDENET_LABELS
        nudity = nudenet(args.nudenet_threshold, labels)
    return Scorers(
        clip=_clip(args, servers),
        features=user_features(args.features) if args.features else None,
        classifier=user_classifier(args.classifier) if args.classifier else None,
        nudity=nudity,
        lpips=perceptual_distance() if args.lpips else None,
    )


def _clip(args: argparse.Namespace, servers: Sequence[ComfyClient]) -> Scorer | None:
    if args.clip and args.clip_vision:
        raise UsageError("Give --clip or --clip-vision, not both.")
    if args.clip_text and not args.clip_vision:
        raise UsageError("--clip-text needs --clip-vision. Give both.")
    if args.clip_vision:
        if not servers:
            raise UsageError("--clip-vision is a file of a server. Give --server.")
        from ..evaluate.client import server_clip

        return server_clip(servers[0], args.clip_vision, args.clip_text)
    return local_clip(args.clip) if args.clip else None
