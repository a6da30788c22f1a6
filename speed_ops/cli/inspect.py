"""`inspect`: shows what a file is and what its header claims. Reads headers only."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UnsupportedModelError
from ..inputs import INPUT_TITLES, POOLED
from ..models.detect import detect, is_lora, layers, second_layer
from ..provenance import read_provenance
from ..recipe import Recipe
from .console import Console, size_in_words
from .options import command

if TYPE_CHECKING:
    from ..files.checkpoint import Checkpoint


def add_to(subparsers: Any) -> None:
    """Declares the command."""
    help = "Show what a file is and what its header records about an erasure, unverified."
    parser = command(subparsers, "inspect", run, help)
    help = "checkpoint, diffusers folder, LoRA or recipe"
    parser.add_argument("file", type=Path, metavar="FILE", help=help)


def run(args: argparse.Namespace, console: Console) -> int:
    """Reads headers only."""
    from ..report.recorded import recipe_lines, recorded_lines

    if args.file.suffix.lower() == ".json":
        recipe = Recipe.read(args.file)
        console.say(f"{args.file}: a recipe.")
        console.page("\n".join(recipe_lines(recipe)))
        console.result({"file": str(args.file), "what": "recipe", "recipe": _plain_recipe(recipe)})
        return 0
    from ..files.checkpoint import Checkpoint

    model = Checkpoint.open(args.file)
    facts = _facts(model)
    console.say(
        f"{args.file}: {facts['what']}, {size_in_words(model.size)}"
        + (f", {facts['tensors']} tensors ({facts['types']})" if console.verbose else "")
    )
    provenance, plain = read_provenance(model.metadata, str(args.file)), None
    if provenance is None:
        console.say("No erasure recorded in its header.")
    else:
        console.page("\n".join(recorded_lines(provenance)))
        console.say("`speed-erase verify` compares the weights with the base, and measures them.")
        recipe_facts = _plain_recipe(provenance.recipe) if provenance.recipe else None
        plain = vars(provenance) | {"recipe": recipe_facts}
    console.result({"file": str(args.file), **facts, "recorded": plain})
    return 0


def _facts(model: Checkpoint) -> dict[str, Any]:
    types = Counter(model.dtypes.values())
    facts: dict[str, Any] = {
        "size": model.size,
        "tensors": len(model.shapes),
        "types": ", ".join(f"{count} {name}" for name, count in types.most_common()),
        "family": None,
    }
    if is_lora(model.shapes):
        return facts | {"what": "a LoRA"}
    try:
        family = detect(model.shapes)
    except UnsupportedModelError as fault:
        return facts | {"what": "not a model that can be edited", "reason": str(fault)}
    count = len(layers(family, model.shapes, "V"))
    second = second_layer(family, model.shapes) is not None
    also = f" and one more for {INPUT_TITLES[POOLED].lower()}" if second else ""
    title = f"a {family.title} model with {count} layer{'s' if count != 1 else ''} to edit{also}"
    return facts | {"family": family.name, "layers": count, "second_input": second, "what": title}


def _plain_recipe(recipe: Recipe) -> dict[str, Any]:
    return vars(recipe) | {
        "concepts": [concept.content() for concept in recipe.concepts],
        "retain": [vars(source) for source in recipe.retain],
        "history": [_plain_recipe(earlier) for earlier in recipe.history],
    }
