"""`attest`: writes a statement about a verified file, for others to sign and to check."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .console import Console
from .options import command
from .verify import add_erased_file, erased_file_from, show_verification


def add_to(subparsers: Any) -> None:
    """Declares the command."""
    help = (
        "Verify a file, and write an in-toto statement with its digests and measurements. Exit code"
        " 1 if it fails."
    )
    parser = command(subparsers, "attest", run, help)
    add_erased_file(parser)
    help = "where to write the statement"
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help=help)
    help = "sign it with this private key (PEM: Ed25519 or ECDSA)"
    parser.add_argument("--sign", type=Path, metavar="KEY", help=help)
    parser.add_argument("--force", action="store_true", help="overwrite a file that exists")


def run(args: argparse.Namespace, console: Console) -> int:
    """Verifies first: nothing is attested that is not true here."""
    erased, text = erased_file_from(args, console)
    from ..checkpoints.attestation import write_attestation
    from ..checkpoints.envelope import Key
    from ..checkpoints.verify import verify_file

    key = Key.read(args.sign, "private") if args.sign else None
    verification = verify_file(erased, text, console.progress)
    show_verification(verification, erased.provenance, args.file, console)
    if verification.faults:
        return 1
    write_attestation(args.out, args.file, erased, verification, key=key, force=args.force)
    console.say(f"Statement, {'signed' if key else 'not signed'}: {args.out}")
    return 0
