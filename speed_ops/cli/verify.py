"""`verify`: measures the weights of an erased file again and compares them with its header."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..provenance import Provenance, load_recipe
from .advice import advised
from .blocklist import add_blocklist, blocked_by
from .console import Console
from .options import add_text_setup, command, refuse_alone, text_setup_from

UNSIGNED = "No signature was checked. To check one, give the signer's public key: --key FILE."

if TYPE_CHECKING:
    from ..checkpoints.erased_file import ErasedFile
    from ..checkpoints.text_setup import TextSetup
    from ..checkpoints.verify import Verification

_LISTED = 20


def add_to(subparsers: Any) -> None:
    """Declares the command."""
    help = (
        "Check that a file is its base with the recipe's edit and nothing else, and measure it"
        " again. Exit code 1 if it is not."
    )
    parser = command(subparsers, "verify", run, help)
    add_erased_file(parser)
    help = "also fail unless every concept is measured as erased"
    parser.add_argument("--strict", action="store_true", help=help)
    help = "also fail unless every concept of this list is erased; repeatable"
    add_blocklist(parser, help)
    help = "a statement about the file, whose digests and numbers are checked as well"
    parser.add_argument("--attestation", type=Path, metavar="STATEMENT", help=help)
    help = "also fail unless the statement is signed with this public key (PEM: Ed25519 or ECDSA)"
    parser.add_argument("--key", type=Path, metavar="KEY", help=help)


def add_erased_file(parser: argparse.ArgumentParser, base_required: bool = True) -> None:
    """An erased file, and what is needed to measure it."""
    help = "an erased checkpoint, diffusers folder or eraser LoRA"
    parser.add_argument("file", type=Path, metavar="FILE", help=help)
    help = "the original model"
    parser.add_argument("--base", type=Path, required=base_required, metavar="BASE", help=help)
    help = "the recipe, for a file written without names or saved again without a header"
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
    refuse_alone(args, "key", "attestation")
    erased, text_setup = erased_file_from(args, console)
    from ..checkpoints.attestation import Attestation
    from ..checkpoints.verify import verify_file

    attested = Attestation.read(args.attestation, args.key) if args.attestation else None
    verification = verify_file(erased, text_setup, console.progress, strict=args.strict)
    if attested:
        more = attested.faults(args.file, erased, verification)
        verification = replace(verification, faults=(*verification.faults, *more))
        if not args.key:
            console.note(UNSIGNED)
    if args.blocklist:
        from ..checkpoints.blocked import not_erased_of

        missing = not_erased_of(blocked_by(args)[0], erased, verification.measured)
        verification = replace(verification, faults=(*verification.faults, *missing))
    for text in verification.notes:
        console.note(text)
    show_verification(verification, erased.provenance, args.file, console)
    return 1 if verification.faults else 0


def show_verification(
    verification: Verification, provenance: Provenance, file: Path, console: Console
) -> None:
    """Prints what was claimed, what was measured and every fault.

    Args:
        verification: The result.
        provenance: What the file claims.
        file: The file.
        console: Where to.
    """
    from ..certificate.summary import details
    from ..certificate.verdicts import verdict_in_words

    console.result(
        {
            "file": str(file),
            "verified": not verification.faults,
            "faults": [fault.to_json() for fault in verification.faults],
            "measured": verification.measured.to_json(),
            "claimed": verification.claimed,
        }
    )
    claims, _ = provenance.claims()
    rows = []
    for index, concept in enumerate(verification.measured.concepts):
        claim = claims[index].verdict if index < len(claims) else "?"
        verdicts = verdict_in_words(claim), verdict_in_words(concept.verdict)
        rows.append((concept.name, *verdicts))
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
        console.say(f"Fault ({text.code}): {advised(text)}")
    if verification.faults:
        console.say(f"FAILED: {file} is not what its recipe makes of the base.")
    else:
        console.say(f"Verified: {file} is what its recipe makes of the base, and nothing else.")
