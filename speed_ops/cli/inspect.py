"""`inspect`: shows what a file is and what its header claims. Reads headers only."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UnsupportedModelError
from ..inputs import INPUT_TITLES, POOLED
from ..models.detect import detect, is_lora, layers, second_layer
from ..provenance import Provenance, read_provenance
from ..recipe import Recipe
from .console import Console, size_in_words
from .options import command

if TYPE_CHECKING:
    from ..files.checkpoint import Checkpoint

_LISTED = 12


def add_to(subparsers: Any) -> None:
    """Declares the command."""
    help = "Show what a file is, and what it claims to have erased."
    parser = command(subparsers, "inspect", run, help)
    help = "checkpoint, diffusers folder, LoRA or recipe"
    parser.add_argument("file", type=Path, metavar="FILE", help=help)


def run(args: argparse.Namespace, console: Console) -> int:
    """Reads headers only."""
    if args.file.suffix.lower() == ".json":
        recipe = Recipe.read(args.file)
        console.say(f"{args.file}: a recipe")
        _say_recipe(recipe, console)
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
    claims = provenance.certificate.get("concepts")
    if provenance.recipe is not None:
        _say_recipe(provenance.recipe, console, claims if isinstance(claims, list) else [])
    if console.verbose:
        console.say(f"Original: sha256 {provenance.base_hash or '(not stated)'}")
    console.say("These are the file's claims. `speed-erase verify` measures them.")


def _say_recipe(recipe: Recipe, console: Console, claims: Sequence[Any] = ()) -> None:
    """Prints what a recipe erases, each concept with the verdict that the header claims."""
    from ..certificate.certificate import verdict_in_words

    hidden = "" if recipe.has_names else " (written without names)"
    console.say(f"Erased concepts{hidden}:" if claims else f"Concepts to erase{hidden}:")
    rows = []
    for index, concept in enumerate(recipe.concepts[:_LISTED]):
        names = " | ".join((concept.target, *concept.aliases))
        claim = claims[index] if index < len(claims) and isinstance(claims[index], dict) else {}
        verdict = verdict_in_words(claim["verdict"]) if "verdict" in claim else ""
        rows.append((f"{names} -> {concept.anchor or '(nothing)'}", concept.kind, verdict))
    console.table((), rows, indent="  ")
    if len(recipe.concepts) > _LISTED:
        console.say(f"  and {len(recipe.concepts) - _LISTED:,} more")
    lists = ", ".join(
        source.label + (f" ({len(source.names):,} names)" if source.names else "")
        for source in recipe.retain
    )
    console.say(f"Protected: {lists or 'no names'}")
    labels = {"preset_name": "preset", "method": "method", "layers": "layers"}
    settings = [
        f"{text} {recipe.settings[name]}"
        for name, text in labels.items()
        if name in recipe.settings
    ]
    console.say(f"Settings: {', '.join([*settings, f'strength {recipe.strength}'])}")
    for number, earlier in enumerate(recipe.history[:_LISTED], 1):
        names = ", ".join(concept.target for concept in earlier.concepts[:_LISTED])
        omitted = len(earlier.concepts) - _LISTED
        names += f" and {omitted:,} more" if omitted > 0 else ""
        made_from = earlier.base_hash or "(not stated)"
        console.say(f"Erased earlier ({number}): {names}; original: sha256 {made_from}")
    if len(recipe.history) > _LISTED:
        console.say(f"and {len(recipe.history) - _LISTED:,} more erasures")


def _plain_recipe(recipe: Recipe) -> dict[str, Any]:
    return vars(recipe) | {
        "concepts": [vars(concept) for concept in recipe.concepts],
        "retain": [vars(source) for source in recipe.retain],
        "history": [_plain_recipe(earlier) for earlier in recipe.history],
    }
