"""Which files a command is to write: options of `erase`, `apply` and `batch`."""

from __future__ import annotations

import argparse
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from ..studio.products import Product, parse_products
from .console import Console
from .options import Parser
from .usage import UsageError, of_arguments

SALT_VARIABLE = "SPEED_ERASE_SALT"


@dataclass(frozen=True)
class Wanted:
    """What to write, where and how."""

    folder: Path
    products: tuple[Product, ...]
    name: str = ""
    force: bool = False
    strict: bool = False
    salt: str | None = None


def add_wanted(parser: Parser, save_default: str = "checkpoint,lora,recipe,report") -> None:
    """Options about the files to write."""
    group = parser.add_argument_group("files to write")
    group.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the results")
    group.add_argument(
        "--save", default=save_default, metavar="LIST", help="any of checkpoint,lora,recipe,report (default: all)"
    )
    group.add_argument("--force", action="store_true", help="overwrite files that exist")
    group.add_argument("--strict", action="store_true", help="write nothing unless every concept counts as erased")
    group.add_argument("--redact", action="store_true", help="store salted hashes instead of names")
    group.add_argument(
        "--salt", metavar="TEXT", help=f"the salt of --redact (default: {SALT_VARIABLE}, else a random one, shown once)"
    )


def wanted_from(args: argparse.Namespace, console: Console, name: str = "") -> Wanted:
    """The files that the arguments ask for."""
    with of_arguments():
        products = parse_products(args.save)
    salt = None
    if args.redact:
        salt = args.salt or os.environ.get(SALT_VARIABLE) or _new_salt(console)
    elif args.salt:
        raise UsageError("--salt is given without --redact: names would be stored in clear.")
    return Wanted(args.out, products, name, args.force, args.strict, salt)


def _new_salt(console: Console) -> str:
    salt = secrets.token_hex(16)
    console.note(f"the salt is {salt}; it is stored nowhere: keep it to prove later which names the hashes stand for.")
    return salt
