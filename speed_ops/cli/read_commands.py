"""The commands that read and judge: `inspect`, `verify`, `probe` and `forecast`. Nothing is
written.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UnsupportedModelError
from ..models.detect import detect, is_lora, layers, pooled_layer
from ..provenance import Provenance, load_recipe, read_provenance
from ..recipe import Recipe
from .console import Console
from .options import add_job, add_text_setup, command, job_from, offer, text_setup_from
from .salt import add_salt, salt_from

if TYPE_CHECKING:
    from ..checkpoints.verify import Verification
    from ..files.checkpoint import Checkpoint
    from ..leak_probe import LeakReport


_LISTED = 12


def add_inspect(commands: Any) -> None:
    """Declares the command."""
    help = "Show what a file is and what its header says about an erasure."
    parser = command(commands, "inspect", run_inspect, help)
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="checkpoint, diffusers folder, LoRA or recipe"
    )


def run_inspect(args: argparse.Namespace, console: Console) -> int:
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


def add_verify(commands: Any) -> None:
    """Declares the command."""
    help = (
        "Recompute a file's certificate from its weights. Exit code 1 if the weights do not match"
        " the header."
    )
    parser = command(commands, "verify", run_verify, help)
    parser.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help="an erased checkpoint, diffusers folder or eraser LoRA",
    )
    parser.add_argument(
        "--base", type=Path, required=True, metavar="BASE", help="the model that it was made from"
    )
    parser.add_argument(
        "--recipe", type=Path, metavar="RECIPE", help="the unredacted recipe, for a redacted file"
    )
    add_salt(parser, "the salt of a redacted file")
    add_text_setup(parser)


def run_verify(args: argparse.Namespace, console: Console) -> int:
    """Measures, compares and says so."""
    recipe = load_recipe(args.recipe) if args.recipe else None
    from ..checkpoints.verify import verify_file

    found = verify_file(
        args.file,
        args.base,
        lambda clip_skip: text_setup_from(args, clip_skip),
        recipe=recipe,
        salt=salt_from(args),
        progress=console.progress,
    )
    for text in found.notes:
        console.note(text)
    _show_verification(found, args.file, console)
    return 1 if found.faults else 0


def _show_verification(found: Verification, file: Path, console: Console) -> None:
    from ..certificate.certificate import GROUPS, PLACES, pooled_lines, verdict_in_words

    console.result(
        {
            "file": str(file),
            "verified": not found.faults,
            "faults": list(found.faults),
            "measured": found.measured.to_json(),
            "claimed": found.claimed,
        }
    )
    concepts = [one if isinstance(one, dict) else {} for one in found.claimed.get("concepts") or []]
    rows = []
    for place, one in enumerate(found.measured.concepts):
        claim = concepts[place] if place < len(concepts) else {}
        rows.append(
            (
                one.name,
                verdict_in_words(claim.get("verdict", "?")),
                verdict_in_words(one.verdict),
                _share(claim.get("probe_median")),
                _share(one.probe_median),
            )
        )
    console.table(("Concept", "claimed", "measured", "left (claimed)", "left (measured)"), rows)
    for part in found.measured.drift:
        drift = (
            f"drift median {part.median:.1%}, 95th percentile {part.p95:.1%}, maximum"
            f" {part.maximum:.1%}"
        )
        console.say(f"{GROUPS[part.group]} ({PLACES[part.where]}): {drift}.")
    if found.measured.pooled is not None:
        for line in pooled_lines(found.measured.pooled):
            console.say(line)
    for text in found.faults:
        console.say(f"Fault: {text}")
    console.say(
        f"FAILED: {file} does not do what its header says."
        if found.faults
        else f"Verified: {file} does what its header says."
    )


def _share(value: Any) -> str:
    return f"{value:.1%}" if isinstance(value, (int, float)) else "?"


def add_probe(commands: Any) -> None:
    """Declares the command."""
    help = (
        "Try aliases, typos and descriptions of what a file has erased. Exit code 1 when one still"
        " works."
    )
    parser = command(commands, "probe", run_probe, help)
    parser.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help="an erased checkpoint, diffusers folder or eraser LoRA",
    )
    parser.add_argument(
        "--base", type=Path, required=True, metavar="BASE", help="the model that it was made from"
    )
    offer(
        parser.add_argument(
            "--templates", type=int, metavar="N", help="prompts to try besides the phrase alone"
        )
    )
    describe = "your own description of the concept, tried instead of the standard ones"
    offer(parser.add_argument("--describe", default="", metavar="TEXT", help=describe))
    parser.add_argument(
        "--recipe", type=Path, metavar="RECIPE", help="the unredacted recipe, for a redacted file"
    )
    add_salt(parser, "the salt of a redacted file")
    add_text_setup(parser)


def run_probe(args: argparse.Namespace, console: Console) -> int:
    """Climbs the ladder of every concept of the file's recipe."""
    recipe = load_recipe(args.recipe) if args.recipe else None
    from ..checkpoints.erase_file import missing_encoders
    from ..checkpoints.verify import open_erased
    from ..leak_probe import TEMPLATES, probe_leaks

    erased = open_erased(
        args.file, args.base, recipe=recipe, salt=salt_from(args), progress=console.progress
    )
    text = text_setup_from(args, erased.stored.clip_skip)
    report = probe_leaks(
        text.encoder(erased.source),
        erased.source.model(erased.stored.job.settings.layers).weights,
        erased.edits,
        erased.stored.job.concepts,
        templates=TEMPLATES if args.templates is None else max(0, args.templates),
        description=args.describe,
        progress=console.progress,
    )
    for sentence in (*erased.stored.notes, *missing_encoders(erased.source, text)):
        console.note(sentence)
    console.page(report.text())
    if report.leaking:
        console.say("To erase these as well, run `erase` on the base model with:")
        for concept in report.closed():
            console.say(f'  --concepts "{concept.as_line()}"')
    console.result(_plain_leaks(report))
    return 1 if report.leaking else 0


def _plain_leaks(report: LeakReport) -> dict[str, Any]:
    tried = [
        {
            "concept": leak.concept.target,
            "rung": leak.rung,
            "phrase": leak.phrase,
            "prompt": leak.prompt,
            "before": leak.before,
            "after": leak.after,
            "leaks": leak.leaks,
        }
        for leak in report.tried
    ]
    return {
        "tried": tried,
        "leaking": len(report.leaking),
        "closed": [one.as_line() for one in report.closed()],
    }


def add_forecast(commands: Any) -> None:
    """Declares the command."""
    help = (
        "Show which names an erasure would move if nothing protected them, and how far. Nothing is"
        " written."
    )
    parser = command(commands, "forecast", run_forecast, help)
    parser.add_argument(
        "checkpoint", type=Path, metavar="CHECKPOINT", help="safetensors file or diffusers folder"
    )
    offer(
        parser.add_argument(
            "--top", type=int, default=20, metavar="N", help="names to show (default: 20)"
        )
    )
    add_text_setup(parser)
    add_job(parser)


def run_forecast(args: argparse.Namespace, console: Console) -> int:
    """Prints the most endangered names."""
    job = job_from(args, console.note)
    from ..checkpoints.erase_file import before_starting, foresee
    from ..checkpoints.source import ModelSource

    source, text = ModelSource.open(args.checkpoint), text_setup_from(args)
    for sentence in before_starting(source, job, text):
        console.note(sentence)
    ahead = foresee(source, job, text, console.progress)
    ranked = list(zip(ahead.names, ahead.shifts, strict=True))
    shown = ranked[: max(args.top, 0)]
    console.table(("Name", "Predicted shift"), [(name, f"{shift:.1%}") for name, shift in shown])
    if ranked:
        middle = ranked[len(ranked) // 2][1]
        console.say(
            f"{len(ranked)} names, median shift {middle:.1%}. `erase` protects the names on its"
            " lists."
        )
    console.result({"names": [{"name": name, "shift": shift} for name, shift in ranked]})
    return 0
