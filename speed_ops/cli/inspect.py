"""`inspect`: shows what a file is and what its header reports. Reads headers only."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UnsupportedModelError
from ..models.detect import detect, is_lora, layers, pooled_layer
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
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="checkpoint, diffusers folder, LoRA or recipe"
    )


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
    said = read_provenance(model.metadata, str(args.file))
    if said is None:
        console.say("Its header says nothing about an erasure.")
    else:
        _say_provenance(said, console)
    console.result({"file": str(args.file), **facts, **_provenance(said)})
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
    count, pooled = (
        len(layers(family, model.shapes, "V")),
        pooled_layer(family, model.shapes) is not None,
    )
    also = " and one more for pooled text" if pooled else ""
    return facts | {
        "family": family.name,
        "layers": count,
        "pooled": pooled,
        "what": (
            f"a {family.title} model with {count} layer{'s' if count != 1 else ''} to edit{also}"
        ),
    }


def _say_provenance(said: Provenance, console: Console) -> None:
    from ..certificate.certificate import verdict_in_words

    if said.recipe is not None:
        _say_recipe(said.recipe, console)
    claims = said.certificate.get("concepts")
    for one in claims[:_LISTED] if isinstance(claims, list) else []:
        if isinstance(one, dict) and isinstance(one.get("probe_median"), (int, float)):
            left = f"{one['probe_median']:.0%} left in unseen prompts"
            console.say(
                f"  {one.get('name')}: certified as {verdict_in_words(one.get('verdict'))}, {left}."
            )
    console.say(f"Made from a file whose sha256 is {said.base_hash or '(not stated)'}.")
    console.say("This is what the header claims; `speed-erase verify` measures the weights.")


def _say_recipe(recipe: Recipe, console: Console) -> None:
    hidden = " (redacted: names are salted hashes)" if recipe.redacted else ""
    count = len(recipe.concepts)
    console.say(f"Erases {count} concept{'s' if count != 1 else ''}{hidden}:")
    for one in recipe.concepts[:_LISTED]:
        console.say(
            f"  {' | '.join((one.target, *one.aliases))} -> {one.anchor or '(nothing)'} "
            f" [{one.kind}]"
        )
    if len(recipe.concepts) > _LISTED:
        console.say(f"  ... and {len(recipe.concepts) - _LISTED} more")
    kept = ", ".join(
        part.label + (f" ({len(part.names)} names)" if part.names else "") for part in recipe.retain
    )
    settings = recipe.settings
    shown = {"preset_name": "preset", "method": "method", "layers": "layers"}
    chosen = ", ".join(
        f"{word} {settings[name]}" for name, word in shown.items() if name in settings
    )
    console.say(
        f"Keeps {kept or 'nothing'}. Settings: {chosen or 'none stated'}; strength"
        f" {recipe.rows.get('strength', 1.0)}."
    )
    _say_history(recipe, console)


def _say_history(recipe: Recipe, console: Console) -> None:
    """What had been erased from the model before, the oldest first."""
    earlier = recipe.history
    for number, one in enumerate(earlier[:_LISTED], 1):
        names = ", ".join(concept.target for concept in one.concepts[:_LISTED])
        more = len(one.concepts) - _LISTED
        names += f" and {more} more" if more > 0 else ""
        made_from = one.base_hash or "(not stated)"
        console.say(
            f"Erased before this ({number}): {names}, from a file whose sha256 is {made_from}."
        )
    if len(earlier) > _LISTED:
        console.say(f"... and {len(earlier) - _LISTED} more erasures")


def _plain_recipe(recipe: Recipe) -> dict[str, Any]:
    plain = vars(recipe) | {"concepts": [vars(one) for one in recipe.concepts]}
    plain |= {"retain": [vars(part) for part in recipe.retain]}
    return plain | {"history": [_plain_recipe(one) for one in recipe.history]}


def _provenance(said: Provenance | None) -> dict[str, Any]:
    if said is None:
        return {"provenance": None}
    recipe = _plain_recipe(said.recipe) if said.recipe else None
    return {"provenance": vars(said) | {"recipe": recipe}}
