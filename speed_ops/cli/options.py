"""Options that several subcommands share. The expert flags are made from the fields of `EraseSettings`."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from ..settings import PRESETS, EraseSettings
from ..text.kinds import KINDS, kind_of
from ..text.phrases import Concept, ConceptList, parse_concepts, read_concepts
from ..text.retain import RetainSet, builtin_retain, builtin_retain_sets, read_retain, union
from .usage import UsageError, of_arguments

if TYPE_CHECKING:
    from ..pipeline import Job
    from ..studio.reading import Reading

Parser = argparse.ArgumentParser
NO_LIST = "none"


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
        help='"target -> anchor", "target | alias -> anchor" or "target"; repeatable, or one concept a line',
    )
    what.add_argument("--concepts-file", action="append", default=[], type=Path, metavar="FILE", help="txt or csv")
    what.add_argument("--kind", choices=list(KINDS), default="style", help="what the concepts are (default: style)")
    what.add_argument(
        "--retain",
        action="append",
        default=[],
        metavar="LIST",
        help=f"built-in lists to keep: {', '.join(builtin_retain_sets())}, or none (default: those of the kind)",
    )
    what.add_argument(
        "--retain-file",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="a list of your own: txt, csv, json",
    )
    what.add_argument("--retain-column", default="", metavar="NAME", help="column of a csv retain list")
    what.add_argument("--retain-limit", type=int, metavar="N", help="keep at most N names of the lists")
    add_settings(parser)


def add_settings(parser: Parser) -> None:
    """`--preset`, and one flag for every other field of `EraseSettings`."""
    group = parser.add_argument_group("settings (experts)")
    hints = get_type_hints(EraseSettings)
    for item in dataclasses.fields(EraseSettings):
        help = item.metadata["help"].replace("%", "%%")
        if item.name == "preset_name":
            group.add_argument(
                "--preset", dest=item.name, choices=list(PRESETS), default="auto", help="start from this"
            )
            continue
        flag, kind = "--" + item.name.replace("_", "-"), hints[item.name]
        options: dict[str, Any] = {"dest": item.name, "default": None, "help": help}
        if kind is bool:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, **options)
        elif choices := get_args(kind):
            group.add_argument(flag, choices=choices, **options)
        else:
            group.add_argument(flag, type=kind, metavar="N" if kind is int else "X", **options)


def add_reading(parser: Parser) -> None:
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
        help="a file or folder that holds a text encoder, if the model does not; repeatable, in any order",
    )
    group.add_argument("--no-cache", action="store_true", help="neither read nor write the embedding cache")


def settings_from(args: argparse.Namespace) -> EraseSettings:
    """The preset with the given flags over it."""
    names = [item.name for item in dataclasses.fields(EraseSettings) if item.name != "preset_name"]
    given = {name: value for name in names if (value := getattr(args, name)) is not None}
    from ..pipeline import HELD_OUT_SHARE

    with of_arguments():
        return EraseSettings.preset(args.preset_name, **{"held_out": HELD_OUT_SHARE, **given})


def job_from(args: argparse.Namespace) -> Job:
    """The job that the arguments describe."""
    concepts = concepts_from(args)
    retain = _retain_from(args, concepts)
    from ..pipeline import Job

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
        raise UsageError('There is no concept to erase: give --concepts "target -> anchor" or --concepts-file FILE.')
    return tuple(total)


def _retain_from(args: argparse.Namespace, concepts: Iterable[Concept]) -> RetainSet:
    named = [name.strip() for text in args.retain for name in text.split(",") if name.strip()]
    if not named and not args.retain_file:
        named = list(dict.fromkeys(name for one in concepts for name in kind_of(one.kind).retain_sets))
    known = builtin_retain_sets()
    for name in named:
        if name not in (*known, NO_LIST):
            raise UsageError(
                f"There is no built-in retain list {name!r}: choose from {', '.join(known)}, or {NO_LIST}."
            )
    sets = [builtin_retain(name) for name in named if name != NO_LIST]
    sets += [read_retain(file, args.retain_column) for file in args.retain_file]
    with of_arguments():
        return union(sets) if args.retain_limit is None else union(sets).limit(args.retain_limit)


def reading_from(args: argparse.Namespace, clip_skip: int | None = None) -> Reading:
    """How to read text; `clip_skip`: a recipe's, used where the arguments give none."""
    given = args.clip_skip
    if given == 0:
        raise UsageError("The clip skip is 0: 1 is the last layer, 2 the one before.")
    from ..studio.reading import Reading
    from ..text.embedding_cache import EmbeddingCache

    skip = clip_skip if given is None else -abs(given)
    cache = None if args.no_cache else EmbeddingCache()
    return Reading(skip, args.tokenizer, tuple(args.text_encoder), cache)
