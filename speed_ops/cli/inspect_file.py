"""`speed-erase inspect`: what a file is and what was done to it."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..architectures import detect, layers
from ..errors import UnsupportedModelError
from ..files import foreign
from ..files.metadata import Provenance, read_provenance
from ..files.recipe import Recipe
from .console import Console
from .options import command

if TYPE_CHECKING:
    from ..files.checkpoint import Checkpoint

_LISTED = 12


def add_to(commands: Any) -> None:
    """Declares the subcommand."""
    help = "Say what a file is, and what its header tells about an erasure."
    parser = command(commands, "inspect", run, help)
    parser.add_argument("file", type=Path, metavar="FILE", help="checkpoint, diffusers folder, LoRA or recipe")


def run(args: argparse.Namespace, console: Console) -> int:
    """Reads headers only."""
    if args.file.suffix.lower() == ".json":
        recipe = Recipe.read(args.file)
        console.say(f"{args.file}: a recipe.")
        _say_recipe(recipe, console)
        console.result({"file": str(args.file), "what": "recipe", "recipe": _plain(recipe)})
        return 0
    from ..files.checkpoint import Checkpoint

    model = Checkpoint.open(args.file)
    facts = _facts(model)
    console.say(
        f"{args.file}: {facts['what']}, {model.size / 1e6:.1f} MB, {facts['tensors']} tensors ({facts['types']})."
    )
    said = read_provenance(model.metadata, str(args.file))
    if said is None:
        console.say("Its header says nothing about an erasure.")
    else:
        _say(said, console)
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
    if foreign.is_lora(model.shapes):
        return facts | {"what": "a LoRA"}
    try:
        family = detect(model.shapes)
    except UnsupportedModelError as fault:
        return facts | {"what": "not a model that can be edited", "reason": str(fault)}
    count = len(layers(family, model.shapes, "V"))
    return facts | {
        "family": family.name,
        "layers": count,
        "what": f"a {family.title} model with {count} layer{'s' if count != 1 else ''} to edit",
    }


def _say(said: Provenance, console: Console) -> None:
    if said.recipe is not None:
        _say_recipe(said.recipe, console)
    claims = said.certificate.get("concepts")
    for one in claims[:_LISTED] if isinstance(claims, list) else []:
        if isinstance(one, dict) and isinstance(one.get("probe_median"), (int, float)):
            left = f"{one['probe_median']:.0%} left in unseen contexts"
            console.say(f"  certified: {one.get('name')}: {one.get('verdict')}, {left}")
    console.say(f"Made from the file with sha256 {said.base_hash or '(not stated)'}.")
    console.say("These are the header's words; `speed-erase verify` measures the weights.")


def _say_recipe(recipe: Recipe, console: Console) -> None:
    hidden = " (redacted: names are salted hashes)" if recipe.redacted else ""
    count = len(recipe.concepts)
    console.say(f"Erases {count} concept{'s' if count != 1 else ''}{hidden}:")
    for one in recipe.concepts[:_LISTED]:
        console.say(f"  {' | '.join((one.target, *one.aliases))} -> {one.anchor or '(nothing)'}  [{one.kind}]")
    if len(recipe.concepts) > _LISTED:
        console.say(f"  ... and {len(recipe.concepts) - _LISTED} more")
    kept = ", ".join(part.label + (f" ({len(part.names)} names)" if part.names else "") for part in recipe.retain)
    settings = recipe.settings
    chosen = ", ".join(f"{name} {settings[name]}" for name in ("preset_name", "method", "layers") if name in settings)
    console.say(
        f"Keeps {kept or 'nothing'}. Settings: {chosen or 'none stated'}; strength {recipe.rows.get('strength', 1.0)}."
    )


def _plain(recipe: Recipe) -> dict[str, Any]:
    plain = vars(recipe) | {"concepts": [vars(one) for one in recipe.concepts]}
    return plain | {"retain": [vars(part) for part in recipe.retain]}


def _provenance(said: Provenance | None) -> dict[str, Any]:
    if said is None:
        return {"provenance": None}
    recipe = _plain(said.recipe) if said.recipe else None
    return {"provenance": vars(said) | {"recipe": recipe}}
