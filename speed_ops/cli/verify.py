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
    from ..checkpoints.erased_file import ErasedFile
    from ..checkpoints.text_setup import TextSetup
    from ..checkpoints.verify import Verification

_LISTED = 20


def add_to(subparsers: Any) -> None:
    """Declares the command."""
    help = (
        "Measure an erased file again and compare it with its header. The exit code is 1 if they"
        " differ."
    )
    add_erased_file(command(subparsers, "verify", run, help))


def add_erased_file(parser: argparse.ArgumentParser) -> None:
    """An erased file, and what is needed to measure it."""
    help = "an erased checkpoint, diffusers folder or eraser LoRA"
    parser.add_argument("file", type=Path, metavar="FILE", help=help)
    help = "the original model"
    parser.add_argument("--base", type=Path, required=True, metavar="BASE", help=help)
    help = "the recipe with names, for a file written without them"
    parser.add_argument("--recipe", type=Path, metavar="RECIPE", help=help)
    add_text_setup(parser)


def erased_file_from(args: argparse.Namespace, console: Console) -> tuple[ErasedFile, TextSetup]:
    """The file that `add_erased_file` asked for, and how to read text for it."""
    from ..checkpoints.erased_file import open_erased

    recipe = load_recipe(args.recipe) if args.recipe else None
    erased = open_erased(args.file, args.base, recipe=recipe, progress=console.progress)
    return erased, text_setup_from(args, erased.stored.clip_skip)


def run(args: argparse.Namespace, console: Console) -> int:
    """Measures, compares and prints the result."""
    erased, text_setup = erased_file_from(args, console)
    from ..checkpoints.verify import verify_file

    verification = verify_file(erased, text_setup, console.progress)
    for text in verification.notes:
        console.note(text)
    _show_verification(verification, args.file, console)
    return 1 if verification.faults else 0


def _show_verification(verification: Verification, file: Path, console: Console) -> None:
    from ..certificate.certificate import verdict_in_words
    from ..certificate.summary import details

    console.result(
        {
            "file": str(file),
            "verified": not verification.faults,
            "faults": list(verification.faults),
            "measured": verification.measured.to_json(),
            "claimed": verification.claimed,
        }
    )
    claims = verification.claimed.get("concepts") or []
    rows = []
    for index, concept in enumerate(verification.measured.concepts):
        claim = claims[index] if index < len(claims) and isinstance(claims[index], dict) else {}
        claimed = verdict_in_words(claim.get("verdict", "?"))
        rows.append((concept.name, claimed, verdict_in_words(concept.verdict)))
    if len(rows) > _LISTED and not console.verbose:
        differing = [row for row in rows if row[1] != row[2]]
        console.say(f"{len(rows) - len(differing):,} of {len(rows):,} concepts as claimed")
        rows = differing[:_LISTED]
    if rows:
        console.table(("Concept", "claimed", "measured"), rows)
    if console.verbose:
        for line in details(verification.measured):
            console.say(line)
    for text in verification.faults:
        console.say(f"Fault: {advised(text)}")
    if verification.faults:
        console.say(f"FAILED: {file} differs from its header.")
    else:
        console.say(f"Verified: {file} matches its header.")
