"""`verify`: measures the weights of an erased file again and compares them with its header."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..provenance import load_recipe
from .advice import advised
from .console import Console
from .options import add_text_setup, command, text_setup_from

if TYPE_CHECKING:
    from ..checkpoints.verify import Verification


def add_to(subparsers: Any) -> None:
    """Declares the command."""
    help = (
        "Recompute a file's certificate from its weights. Exit code 1 if the weights do not match"
        " the header."
    )
    parser = command(subparsers, "verify", run, help)
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
        "--recipe",
        type=Path,
        metavar="RECIPE",
        help="the recipe with names, for a file written without them",
    )
    add_text_setup(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Measures, compares and says so."""
    recipe = load_recipe(args.recipe) if args.recipe else None
    from ..checkpoints.verify import open_erased, verify_file

    erased = open_erased(args.file, args.base, recipe=recipe, progress=console.progress)
    text_setup = text_setup_from(args, erased.stored.clip_skip)
    found = verify_file(erased, text_setup, console.progress)
    for text in found.notes:
        console.note(text)
    _show_verification(found, args.file, console)
    return 1 if found.faults else 0


def _show_verification(found: Verification, file: Path, console: Console) -> None:
    from ..certificate.certificate import GROUPS, PLACES, input_lines, verdict_in_words

    console.result(
        {
            "file": str(file),
            "verified": not found.faults,
            "faults": list(found.faults),
            "measured": found.measured.to_json(),
            "claimed": found.claimed,
        }
    )
    claims = found.claimed.get("concepts") or []
    rows = []
    for index, concept in enumerate(found.measured.concepts):
        claim = claims[index] if index < len(claims) and isinstance(claims[index], dict) else {}
        rows.append(
            (
                concept.name,
                verdict_in_words(claim.get("verdict", "?")),
                verdict_in_words(concept.verdict),
                _share(claim.get("probe_median")),
                _share(concept.probe_median),
            )
        )
    console.table(("Concept", "claimed", "measured", "left (claimed)", "left (measured)"), rows)
    for drift in found.measured.drift:
        console.say(
            f"{GROUPS[drift.group]} ({PLACES[drift.where]}): drift median {drift.median:.1%}, 95th"
            f" percentile {drift.p95:.1%}, maximum {drift.maximum:.1%}."
        )
    for name, part in found.measured.other_inputs.items():
        for line in input_lines(name, part):
            console.say(line)
    for text in found.faults:
        console.say(f"Fault: {advised(text)}")
    console.say(
        f"FAILED: {file} does not do what its header says."
        if found.faults
        else f"Verified: {file} does what its header says."
    )


def _share(value: Any) -> str:
    return f"{value:.1%}" if isinstance(value, (int, float)) else "?"
