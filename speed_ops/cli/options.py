"""What several commands share: the job, the text encoder, the machine and the files to write.

The expert flags are made from the fields of `EraseSettings`. Nothing here imports torch before a
command runs.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from ..checkpoints.output_files import PRODUCTS, OutputFiles, parse_products
from ..engine.settings import BUDGETS, PRESETS, EraseSettings, budget_of
from ..errors import InputError, SettingsError, UsageError, suggestion
from ..job import HELD_OUT_SHARE, Job, check_strength, default_retain
from ..text.concept_list import Concept, ConceptList, parse_concepts, read_concepts
from ..text.kinds import KINDS
from ..text.retain_set import (
    RetainSet,
    builtin_retain,
    builtin_retain_sets,
    read_retain,
    retain_from_texts,
    union,
)
from .salt import SALT_VARIABLE, add_salt, make_salt, salt_from

if TYPE_CHECKING:
    from ..checkpoints.source import TextSetup

Parser = argparse.ArgumentParser
Note = Callable[[str], None]
NO_LIST = "none"
STDIN = Path("-")


@contextmanager
def of_arguments() -> Iterator[None]:
    """Around what is read from arguments alone: a bad value there is bad usage."""
    try:
        yield
    except (SettingsError, InputError) as fault:
        raise UsageError(str(fault)) from fault


def offer(action: argparse.Action, *words: str) -> None:
    """Tells shells what an argument may be, or that it is no file; after a comma the words are
    offered again.
    """

    def choose(prefix: str, **_: Any) -> list[str]:
        start = prefix[: prefix.rfind(",") + 1]
        return [start + word for word in words]

    action.completer = choose  # type: ignore[attr-defined]


@dataclasses.dataclass(frozen=True)
class Written:
    """One or more concepts as somebody typed them, one a line."""

    text: str
    kind: str = ""
    """Empty: what `--kind` says."""
    source: str = ""
    """Where it was typed, for messages; empty: on the command line."""


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
    concepts = what.add_argument(
        "--concepts",
        action="append",
        default=[],
        type=Written,
        metavar="TEXT",
        help=(
            '"name", "name -> anchor" or "name | alias -> anchor || kind"; repeatable, or one'
            " concept per line"
        ),
    )
    offer(concepts)
    what.add_argument(
        "--concepts-file",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="txt or csv; - reads standard input",
    )
    what.add_argument(
        "--kind",
        choices=list(KINDS),
        default="style",
        help="what the concepts are (default: style)",
    )
    lists = builtin_retain_sets()
    retain = what.add_argument(
        "--retain",
        action="append",
        default=[],
        metavar="LIST",
        help=(
            f"built-in lists of names to keep: {', '.join(lists)}, or none (default: those that"
            " suit the kind)"
        ),
    )
    offer(retain, *lists, NO_LIST)
    what.add_argument(
        "--retain-file",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="a list of your own: txt, csv, json; - reads standard input",
    )
    offer(
        what.add_argument(
            "--retain-column", default="", metavar="NAME", help="column of a csv list"
        )
    )
    offer(
        what.add_argument(
            "--retain-limit", type=int, metavar="N", help="keep at most N names of the lists"
        )
    )
    parser.set_defaults(retain_names=[])
    add_settings(parser)


def add_settings(parser: Parser) -> None:
    """`--preset`, and one flag for every other field of `EraseSettings`."""
    group = parser.add_argument_group("settings (experts)")
    hints = get_type_hints(EraseSettings)
    for item in dataclasses.fields(EraseSettings):
        help = item.metadata["help"].replace("%", "%%")
        if item.name == "preset_name":
            start = "the preset to start from (default: auto)"
            group.add_argument(
                "--preset", dest=item.name, choices=list(PRESETS), default="auto", help=start
            )
            continue
        if item.name == "drift_budget":
            words = ", ".join(f"{word} ({share:.0%})" for word, share in BUDGETS.items()).replace(
                "%", "%%"
            )
            help = (
                f"how much other things may change on average: {words}, or a number (default:"
                " some); auto obeys it"
            )
            offer(
                group.add_argument(
                    "--budget", dest=item.name, default=None, metavar="HOW MUCH", help=help
                ),
                *BUDGETS,
            )
            continue
        flag, kind = "--" + item.name.replace("_", "-"), hints[item.name]
        options: dict[str, Any] = {"dest": item.name, "default": None, "help": help}
        if kind is bool:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, **options)
        elif choices := get_args(kind):
            group.add_argument(flag, choices=choices, **options)
        else:
            offer(
                group.add_argument(flag, type=kind, metavar="N" if kind is int else "X", **options)
            )


def add_text_setup(parser: Parser) -> None:
    """How text is turned into embeddings."""
    group = parser.add_argument_group("text encoder")
    clip_skip = "hidden layer: 1 (or -1) the last, 2 the one before (default: the model's)"
    offer(group.add_argument("--clip-skip", type=int, metavar="N", help=clip_skip))
    group.add_argument(
        "--tokenizer",
        type=Path,
        metavar="PATH",
        help=(
            "folder with vocab.json and merges.txt (CLIP) or tokenizer.json (T5), or a ComfyUI"
            " checkout"
        ),
    )
    group.add_argument(
        "--text-encoder",
        action="append",
        default=[],
        type=Path,
        metavar="PATH",
        help=(
            "a file or folder with a text encoder that the model file lacks; repeatable, in any"
            " order"
        ),
    )
    group.add_argument(
        "--no-cache", action="store_true", help="neither read nor write the embedding cache"
    )
    add_machine(parser)


def add_machine(parser: Parser) -> None:
    """Where to compute, and with how much of it."""
    machine = parser.add_argument_group("this machine")
    device = machine.add_argument(
        "--device",
        default="auto",
        metavar="NAME",
        help="where to compute: cpu, cuda, cuda:N, or auto (the default), which is cpu",
    )
    offer(device, "auto", "cpu", "cuda")
    threads = "processor cores to compute with (default: torch's choice)"
    offer(machine.add_argument("--threads", type=int, metavar="N", help=threads))


def settings_from(args: argparse.Namespace) -> EraseSettings:
    """The preset with the given flags over it."""
    names = [item.name for item in dataclasses.fields(EraseSettings) if item.name != "preset_name"]
    given = {name: value for name in names if (value := getattr(args, name)) is not None}
    with of_arguments():
        if "drift_budget" in given:
            given["drift_budget"] = budget_of(given["drift_budget"])
        return EraseSettings.preset(args.preset_name, **{"held_out": HELD_OUT_SHARE, **given})


def job_from(args: argparse.Namespace, note: Note) -> Job:
    """The job that the arguments describe; `note` is told what is worth knowing about its lists."""
    if [*args.concepts_file, *args.retain_file].count(STDIN) > 1:
        raise UsageError(
            "Standard input can be read only once: give - to one option, and files to the others."
        )
    concepts = concepts_from(args)
    retain = _retain_from(args, tuple(concepts))
    for sentence in (*concepts.notes, *retain.notes):
        note(sentence)
    return Job.of(tuple(concepts), retain, settings_from(args))


def concepts_from(args: argparse.Namespace) -> ConceptList:
    """Typed concepts, then those of files; at least one."""
    total = ConceptList()
    with of_arguments():
        for (kind, source), parts in groupby(
            args.concepts, lambda part: (part.kind or args.kind, part.source)
        ):
            text = "\n".join(part.text for part in parts)
            total = total + parse_concepts(text, kind, source, comments=False)
    for file in args.concepts_file:
        total = total + read_concepts(file, args.kind)
    if not total:
        raise UsageError(
            'There is nothing to erase: give --concepts "name -> anchor" or --concepts-file FILE.'
        )
    return total


def _retain_from(args: argparse.Namespace, concepts: tuple[Concept, ...]) -> RetainSet:
    named = [name.strip() for text in args.retain for name in text.split(",") if name.strip()]
    known = builtin_retain_sets()
    for name in named:
        if name not in (*known, NO_LIST):
            choice = f"choose from {', '.join(known)}, or {NO_LIST}"
            raise UsageError(
                f"There is no built-in list {name!r}{suggestion(name, known)}: {choice}."
            )
    sets = [builtin_retain(name) for name in named if name != NO_LIST]
    sets += [read_retain(file, args.retain_column) for file in args.retain_file]
    with of_arguments():
        if args.retain_names:
            typed = ((f"Kept name {n}", name) for n, name in enumerate(args.retain_names, 1))
            sets.append(retain_from_texts(typed, "typed"))
        total = union(sets) if sets or named else default_retain(concepts)
        return total if args.retain_limit is None else total.limit(args.retain_limit)


def strength_from(args: argparse.Namespace) -> float:
    """The strength that was asked for."""
    with of_arguments():
        return check_strength(args.strength)


def text_setup_from(
    args: argparse.Namespace, clip_skip: int | None = None, *, here: bool = True
) -> TextSetup:
    """How to read text, on a machine set up as asked; `clip_skip`: a recipe's, used where the
    arguments give none.

    `here`: whether this machine is the one that reads it.
    """
    given = args.clip_skip
    if given == 0:
        raise UsageError("The clip skip is 0: 1 is the last layer, 2 the one before.")
    device = _machine_from(args) if here else _device_from(args)
    from ..checkpoints.source import TextSetup
    from ..encoders.cache import EmbeddingCache

    skip = clip_skip if given is None else -abs(given)
    cache = None if args.no_cache else EmbeddingCache()
    elsewhere = {} if device == "cpu" else {"device": device}
    return TextSetup(skip, args.tokenizer, tuple(args.text_encoder), cache, **elsewhere)


def _machine_from(args: argparse.Namespace) -> str:
    """Sets the number of threads; returns the device, refused where it is not there or cannot do
    the work.
    """
    cores = os.cpu_count() or 1
    if args.threads is not None and not 1 <= args.threads <= cores:
        raise UsageError(
            f"--threads is {args.threads}: choose from 1 to {cores}, the cores of this machine."
        )
    device = _device_from(args)
    import torch

    if args.threads is not None:
        torch.set_num_threads(args.threads)
    if not device.startswith("cuda"):
        return device
    count, number = torch.cuda.device_count(), int(device.partition(":")[2] or 0)
    if number >= count:
        what = (
            "no CUDA device" if not count else f"only {count} CUDA device{'s' if count > 1 else ''}"
        )
        raise SettingsError(f"--device is {device}, but torch finds {what} here: use --device cpu.")
    return device


def _device_from(args: argparse.Namespace) -> str:
    """The device that was asked for, whether it is there or not."""
    if args.device == "mps":
        raise UsageError(
            "The edit is computed in double precision, which mps devices lack: use --device cpu."
        )
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", args.device):
        near = suggestion(args.device, ("auto", "cpu", "cuda"))
        raise UsageError(
            f"There is no device {args.device!r}{near}: choose cpu, cuda, cuda:N or auto."
        )
    return str(args.device) if args.device.startswith("cuda") else "cpu"


def path_or_url(text: str) -> Path | str:
    """A URL as it is: a path would lose one of its slashes."""
    return text if "://" in text else Path(text)


def add_outputs(parser: Parser, place: Callable[[str], Path | str] = Path) -> None:
    """Options about the files to write."""
    group = parser.add_argument_group("files to write")
    group.add_argument(
        "--out", type=place, required=True, metavar="DIR", help="folder for the results"
    )
    save = group.add_argument(
        "--save",
        default=",".join(PRODUCTS),
        metavar="LIST",
        help=f"any of {','.join(PRODUCTS)} (default: all)",
    )
    offer(save, *PRODUCTS)
    group.add_argument("--force", action="store_true", help="overwrite files that exist")
    group.add_argument(
        "--strict", action="store_true", help="write nothing unless every concept counts as erased"
    )
    group.add_argument(
        "--redact", action="store_true", help="store salted hashes instead of names; needs a salt"
    )
    add_salt(group, "the salt of --redact", "; made with a random salt where there is none")
    add_dry_run(group)


def add_dry_run(group: Any) -> None:
    """For commands that write."""
    help = "check everything and say what would be done; write nothing"
    group.add_argument("--dry-run", action="store_true", help=help)


def outputs_from(args: argparse.Namespace, note: Note, name: str = "") -> OutputFiles:
    """The files that the arguments ask for."""
    salt = None
    if args.redact:
        salt = salt_from(args, lambda file: "dry run" if args.dry_run else make_salt(file, note))
        if salt is None:
            raise UsageError(
                "--redact needs a salt that you keep: give --salt TEXT, --salt-file FILE or the"
                f" variable {SALT_VARIABLE}."
            )
    elif args.salt or args.salt_file:
        flag = "--salt" if args.salt else "--salt-file"
        raise UsageError(f"{flag} needs --redact: without it, names are stored as they are.")
    with of_arguments():
        return OutputFiles(
            args.out, parse_products(args.save.split(",")), name, args.force, args.strict, salt
        )
