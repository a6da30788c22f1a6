"""`inspect`: shows what a file is and what its header reports. Reads headers only."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UnsupportedModelError
from ..inputs import INPUT_TITLES, POOLED
from ..models.detect import detect, is_lora, layers, second_layer
from ..provenance import Provenance, read_provenance
from ..recipe import Recipe
from .console import Console
from .options import command

if TYPE_CHECKING:
    from ..files.checkpoint import Checkpoint

_LISTED = 12


def add_to(subparsers: Any) -> None:
    """Declares the command."""
    help = "Show what a file is and what its header says about an erasure."
    parser = command(subparsers, "inspect", run, help)
    help = "checkpoint, diffusers folder, LoRA or recipe"
    parser.add_argument("file", type=Path, metavar="FILE", help=help)


def run(args: argparse.Namespace, console: Console) -> int:
    """Reads headers only."""
    if args.file.suffix.lower() == ".json":
        recipe = Recipe.read(args.file)
        console.say(f"{args.file}: a recipe.")
        _say_recipe(recipe, console)
        console.result({"file": str(args.file), "what": "recipe", "recipe": _plain_recipe(recipe)})
        return 0
    from ..files.checkpoint import Checkpoint

    model = Checkpoint.open(args.file)
    facts = _facts(model)
    console.say(
        f"{args.file}: {facts['what']}, {model.size / 1e6:.1f} MB, {facts['tensors']} tensors"
        f" ({facts['types']})."
    )
    provenance, plain = read_provenance(model.metadata, str(args.file)), None
    if provenance is None:
        console.say("Its header says nothing about an erasure.")
    else:
        _say_provenance(provenance, console)
        recipe_facts = _plain_recipe(provenance.recipe) if provenance.recipe else None
        plain = vars(provenance) | {"recipe": recipe_facts}
    console.result({"file": str(args.file), **facts, "provenance": plain})
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


def _say_provenance(provenance: Provenance, console: Console) -> None:
    from ..certificate.certificate import verdict_in_words

    if provenance.recipe is not None:
        _say_recipe(provenance.recipe, console)
    claims = provenance.certificate.get("concepts")
    for claim in claims[:_LISTED] if isinstance(claims, list) else []:
        if isinstance(claim, dict) and isinstance(claim.get("probe_median"), (int, float)):
            verdict = verdict_in_words(claim.get("verdict"))
            left = f"{claim['probe_median']:.0%} left in unseen prompts"
            console.say(f"  {claim.get('name')}: certified as {verdict}, {left}.")
    console.say(f"Made from a file whose sha256 is {provenance.base_hash or '(not stated)'}.")
    console.say("This is what the header claims; `speed-erase verify` measures the weights.")


def _say_recipe(recipe: Recipe, console: Console) -> None:
    hidden = "" if recipe.has_names else " (written without names)"
    count = len(recipe.concepts)
    console.say(f"Erases {count} concept{'s' if count != 1 else ''}{hidden}:")
    for concept in recipe.concepts[:_LISTED]:
        names = " | ".join((concept.target, *concept.aliases))
        console.say(f"  {names} -> {concept.anchor or '(nothing)'}  [{concept.kind}]")
    if len(recipe.concepts) > _LISTED:
        console.say(f"  ... and {len(recipe.concepts) - _LISTED} more")
    lists = ", ".join(
        source.label + (f" ({len(source.names)} names)" if source.names else "")
        for source in recipe.retain
    )
    labels = {"preset_name": "preset", "method": "method", "layers": "layers"}
    settings = ", ".join(
        f"{label} {recipe.settings[name]}"
        for name, label in labels.items()
        if name in recipe.settings
    )
    console.say(
        f"Keeps {lists or 'nothing'}. Settings: {settings or 'none stated'}; strength"
        f" {recipe.strength}."
    )
    for number, earlier in enumerate(recipe.history[:_LISTED], 1):
        names = ", ".join(concept.target for concept in earlier.concepts[:_LISTED])
        omitted = len(earlier.concepts) - _LISTED
        names += f" and {omitted} more" if omitted > 0 else ""
        made_from = earlier.base_hash or "(not stated)"
        console.say(
            f"Erased before this ({number}): {names}, from a file whose sha256 is {made_from}."
        )
    if len(recipe.history) > _LISTED:
        console.say(f"... and {len(recipe.history) - _LISTED} more erasures")


def _plain_recipe(recipe: Recipe) -> dict[str, Any]:
    return vars(recipe) | {
        "concepts": [vars(concept) for concept in recipe.concepts],
        "retain": [vars(source) for source in recipe.retain],
        "history": [_plain_recipe(earlier) for earlier in recipe.history],
    }
