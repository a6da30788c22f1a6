"""What several commands share: the job, the text encoder, the files to write, and faults of the arguments.

The expert flags are made from the fields of `EraseSettings`. Nothing here imports torch before a command runs.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from ..checkpoints.output_files import OutputFiles, parse_products
from ..concepts.concept_list import Concept, ConceptList, parse_concepts, read_concepts
from ..concepts.kinds import KINDS
from ..concepts.retain_set import RetainSet, builtin_retain, builtin_retain_sets, read_retain, union
from ..engine.settings import BUDGETS, PRESETS, EraseSettings, budget_of
from ..errors import InputError, SettingsError, SpeedError
from ..job import HELD_OUT_SHARE, Job, check_strength, default_retain
from .console import Console

if TYPE_CHECKING:
    from ..checkpoints.source import TextSetup

Parser = argparse.ArgumentParser
NO_LIST = "none"
SALT_VARIABLE = "SPEED_ERASE_SALT"


class UsageError(SpeedError):
    """The arguments make no sense: exit code 2."""


@contextmanager
def of_arguments() -> Iterator[None]:
    """Around what is read from arguments alone: a bad value there is bad usage."""
    try:
        yield
    except (SettingsError, InputError) as fault:
        raise UsageError(str(fault)) from fault


def command(commands: Any, name: str, run: Any, help: str, epilog: str = "") -> Parser:
    """A subcommand with the options that all of them have."""
    parser: Parser = commands.add_parser(
        name,
        help=help,
        description=help,
        epilog=epilog,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="one JSON value on stdout, nothing else")
    group.add_argument("--quiet", action="store_true", help="errors only")
    group.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.set_defaults(run=run)
    return parser


def add_job(parser: Parser) -> None:
    """What to erase, what to keep, and how."""
    what = parser.add_argument_group("what to erase and what to keep")
    what.add_argument(
        "--concepts",
        action="append",
        default=[],
        metavar="TEXT",
        help='"name", "name -> anchor" or "name | alias -> anchor"; repeatable, or one concept per line',
    )
    what.add_argument("--concepts-file", action="append", default=[], type=Path, metavar="FILE", help="txt or csv")
    what.add_argument("--kind", choices=list(KINDS), default="style", help="what the concepts are (default: style)")
    what.add_argument(
        "--retain",
        action="append",
        default=[],
        metavar="LIST",
        help=f"built-in lists of names to keep: {', '.join(builtin_retain_sets())}, or none (default: those that suit "
        "the kind)",
    )
    what.add_argument(
        "--retain-file",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="a list of your own: txt, csv, json",
    )
    what.add_argument("--retain-column", default="", metavar="NAME", help="column of a csv list")
    what.add_argument("--retain-limit", type=int, metavar="N", help="keep at most N names of the lists")
    add_settings(parser)


def add_settings(parser: Parser) -> None:
    """`--preset`, and one flag for every other field of `EraseSettings`."""
    group = parser.add_argument_group("settings (experts)")
    hints = get_type_hints(EraseSettings)
    for item in dataclasses.fields(EraseSettings):
        help = item.metadata["help"].replace("%", "%%")
        if item.name == "preset_name":
            start = "the preset to start from (default: auto)"
            group.add_argument("--preset", dest=item.name, choices=list(PRESETS), default="auto", help=start)
            continue
        if item.name == "drift_budget":
            words = ", ".join(f"{word} ({share:.0%})" for word, share in BUDGETS.items()).replace("%", "%%")
            help = f"how much other things may change on average: {words}, or a number (default: some); auto obeys it"
            group.add_argument("--budget", dest=item.name, default=None, metavar="HOW MUCH", help=help)
            continue
        flag, kind = "--" + item.name.replace("_", "-"), hints[item.name]
        options: dict[str, Any] = {"dest": item.name, "default": None, "help": help}
        if kind is bool:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, **options)
        elif choices := get_args(kind):
            group.add_argument(flag, choices=choices, **options)
        else:
            group.add_argument(flag, type=kind, metavar="N" if kind is int else "X", **options)


def add_text_setup(parser: Parser) -> None:
    """How text is turned into embeddings."""
    group = parser.add_argument_group("text encoder")
    group.add_argument(
        "--clip-skip",
        type=int,
        metavar="N",
        help="hidden layer: 1 (or -1) the last, 2 the one before (default: the model's)",
    )
    group.add_argument(
        "--tokenizer",
        type=Path,
        metavar="PATH",
        help="folder with vocab.json and merges.txt (CLIP) or tokenizer.json (T5), or a ComfyUI checkout",
    )
    group.add_argument(
        "--text-encoder",
        action="append",
        default=[],
        type=Path,
        metavar="PATH",
        help="a file or folder with a text encoder that the model file lacks; repeatable, in any order",
    )
    group.add_argument("--no-cache", action="store_true", help="neither read nor write the embedding cache")


def settings_from(args: argparse.Namespace) -> EraseSettings:
    """The preset with the given flags over it."""
    names = [item.name for item in dataclasses.fields(EraseSettings) if item.name != "preset_name"]
    given = {name: value for name in names if (value := getattr(args, name)) is not None}
    with of_arguments():
        if "drift_budget" in given:
            given["drift_budget"] = budget_of(given["drift_budget"])
        return EraseSettings.preset(args.preset_name, **{"held_out": HELD_OUT_SHARE, **given})


def job_from(args: argparse.Namespace) -> Job:
    """The job that the arguments describe."""
    concepts = concepts_from(args)
    retain = _retain_from(args, concepts)
    return Job.of(concepts, retain, settings_from(args))


def concepts_from(args: argparse.Namespace) -> tuple[Concept, ...]:
    """Typed concepts, then those of files; at least one."""
    total = ConceptList()
    with of_arguments():
        if args.concepts:
            total = parse_concepts("\n".join(args.concepts), args.kind)
    for file in args.concepts_file:
        total = total + read_concepts(file, args.kind)
    if not total:
        raise UsageError('There is nothing to erase: give --concepts "name -> anchor" or --concepts-file FILE.')
    return tuple(total)


def _retain_from(args: argparse.Namespace, concepts: tuple[Concept, ...]) -> RetainSet:
    named = [name.strip() for text in args.retain for name in text.split(",") if name.strip()]
    known = builtin_retain_sets()
    for name in named:
        if name not in (*known, NO_LIST):
            raise UsageError(f"There is no built-in list {name!r}: choose from {', '.join(known)}, or {NO_LIST}.")
    sets = [builtin_retain(name) for name in named if name != NO_LIST]
    sets += [read_retain(file, args.retain_column) for file in args.retain_file]
    total = union(sets) if named or args.retain_file else default_retain(concepts)
    with of_arguments():
        return total if args.retain_limit is None else total.limit(args.retain_limit)


def strength_from(args: argparse.Namespace) -> float:
    """The strength that was asked for."""
    with of_arguments():
        return check_strength(args.strength)


def text_setup_from(args: argparse.Namespace, clip_skip: int | None = None) -> TextSetup:
    """How to read text; `clip_skip`: a recipe's, used where the arguments give none."""
    given = args.clip_skip
    if given == 0:
        raise UsageError("The clip skip is 0: 1 is the last layer, 2 the one before.")
    from ..checkpoints.source import TextSetup
    from ..encoders.cache import EmbeddingCache

    skip = clip_skip if given is None else -abs(given)
    cache = None if args.no_cache else EmbeddingCache()
    return TextSetup(skip, args.tokenizer, tuple(args.text_encoder), cache)


def add_outputs(parser: Parser) -> None:
    """Options about the files to write."""
    group = parser.add_argument_group("files to write")
    group.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the results")
    group.add_argument(
        "--save",
        default="checkpoint,lora,recipe,report",
        metavar="LIST",
        help="any of checkpoint,lora,recipe,report (default: all)",
    )
    group.add_argument("--force", action="store_true", help="overwrite files that exist")
    group.add_argument("--strict", action="store_true", help="write nothing unless every concept counts as erased")
    group.add_argument("--redact", action="store_true", help="store salted hashes instead of names")
    group.add_argument(
        "--salt", metavar="TEXT", help=f"the salt of --redact (default: {SALT_VARIABLE}, else a random one, shown once)"
    )


def outputs_from(args: argparse.Namespace, console: Console, name: str = "") -> OutputFiles:
    """The files that the arguments ask for."""
    salt = None
    if args.redact:
        salt = args.salt or os.environ.get(SALT_VARIABLE) or _new_salt(console)
    elif args.salt:
        raise UsageError("--salt needs --redact: without it, names are stored as they are.")
    with of_arguments():
        return OutputFiles(args.out, parse_products(args.save.split(",")), name, args.force, args.strict, salt)


def _new_salt(console: Console) -> str:
    salt = secrets.token_hex(16)
    console.note(
        f"the salt is {salt}. It is not stored anywhere: keep it to prove later which names are behind the hashes."
    )
    return salt
