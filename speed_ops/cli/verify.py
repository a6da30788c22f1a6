"""`speed-erase verify`: recompute the certificate of a file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .apply import load_recipe
from .console import Console
from .options import add_reading, command, reading_from

if TYPE_CHECKING:
    from ..studio.verify_file import Verification


def add_to(commands: Any) -> None:
    """Declares the subcommand."""
    help = "Recompute a file's certificate from its weights. Exit code 1 when it does not do what its header says."
    parser = command(commands, "verify", run, help)
    parser.add_argument("file", type=Path, metavar="FILE", help="an erased checkpoint, diffusers folder or eraser LoRA")
    parser.add_argument("--base", type=Path, required=True, metavar="BASE", help="the model that it was made from")
    parser.add_argument("--recipe", type=Path, metavar="RECIPE", help="the recipe in clear, for a redacted file")
    parser.add_argument("--salt", metavar="TEXT", help="the salt of a redacted file")
    add_reading(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Measures, compares and says so."""
    recipe = load_recipe(args.recipe) if args.recipe else None
    from ..studio.verify_file import verify_file

    found = verify_file(
        args.file,
        args.base,
        lambda clip_skip: reading_from(args, clip_skip),
        recipe=recipe,
        salt=args.salt,
        progress=console.progress,
    )
    for text in found.notes:
        console.note(text)
    _show(found, args.file, console)
    return 1 if found.faults else 0


def _show(found: Verification, file: Path, console: Console) -> None:
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
                str(claim.get("verdict", "?")),
                one.verdict,
                _share(claim.get("probe_median")),
                _share(one.probe_median),
            )
        )
    console.table(("Concept", "claimed", "measured", "left (claimed)", "left (measured)"), rows)
    for part in found.measured.drift:
        drift = f"drift median {part.median:.1%}, p95 {part.p95:.1%}, max {part.maximum:.1%}"
        console.say(f"{part.group.replace('_', '-')} names, {part.where}: {drift}.")
    for text in found.faults:
        console.say(f"Fault: {text}")
    console.say(
        f"FAILED: {file} does not do what its header says."
        if found.faults
        else f"Verified: {file} does what its header says."
    )


def _share(value: Any) -> str:
    return f"{value:.1%}" if isinstance(value, (int, float)) else "?"
