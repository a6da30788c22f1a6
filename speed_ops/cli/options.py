"""What several commands share: the job, the text encoder, the machine and the files to write.

The flags of settings are made from the fields of `EraseSettings`. Nothing here imports torch before
a command runs.
"""

from __future__ import annotations

import argparse
import dataclasses
import textwrap
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from ..checkpoints.output_files import PRODUCTS, OutputFiles, parse_products
from ..engine.settings import (
    PRESETS,
    PRIORITIES,
    EraseSettings,
    parse_assignments,
    priority_name,
    priority_of,
)
from ..errors import InputError, SettingsError, UsageError, suggestion
from ..job import Job, check_strength, default_retain, host_settings
from ..provenance import load_recipe
from ..recipe import StoredJob, job_of
from ..text.concept_list import Concept, ConceptList, parse_concepts, read_concepts
from ..text.kinds import KINDS
from ..text.retain_set import RetainSet, builtin_retain, builtin_retain_sets, read_retain, union
from .machine import DEVICES
from .machine import text_setup_from as text_setup_from

if TYPE_CHECKING:
    from .console import Console

SHARED_FLAGS = "what to print"
"""Title of the flags that all commands have."""
NO_LIST = "none"
STDIN = Path("-")


@contextmanager
def as_usage_errors() -> Iterator[None]:
    """Wraps what reads arguments alone: a bad value in them is bad usage."""
    try:
        yield
    except (SettingsError, InputError) as fault:
        raise UsageError(str(fault), **fault.data) from fault


def complete_with(action: argparse.Action, *words: str) -> None:
    """Lets shells complete an argument with these words, again after each comma."""

    def complete(prefix: str, **_: Any) -> list[str]:
        start = prefix[: prefix.rfind(",") + 1]
        return [start + word for word in words]

    action.completer = complete  # type: ignore[attr-defined]


def refuse_alone(args: Namespace, flag: str, needed: str) -> None:
    """Raises if a flag is given without another one.

    Args:
        args: All flags.
        flag: Name of the flag.
        needed: Name of the flag that it needs.
    """
    if getattr(args, flag) is not None and getattr(args, needed) is None:
        raise UsageError(f"--{flag} works only with --{needed}. Add --{needed}.")


def command(
    subparsers: Any,
    name: str,
    run: Callable[[Namespace, Console], int],
    help: str,
    epilog: str = "",
) -> ArgumentParser:
    """A subcommand with the options that all of them have.

    Args:
        subparsers: Where argparse keeps the commands.
        name: The word that calls it.
        run: Does the work and returns the exit code.
        help: One sentence, shown in the list of commands and above its own help.
        epilog: Examples, shown below its own help.
    """
    parser: ArgumentParser = subparsers.add_parser(
        name,
        help=help,
        description=textwrap.fill(help, 80),
        epilog=epilog,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    group = parser.add_argument_group(SHARED_FLAGS)
    group.add_argument("--verbose", action="store_true", help="show all measurements")
    group.add_argument("--quiet", action="store_true", help="show errors only")
    group.add_argument("--json", action="store_true", help="print one JSON value to stdout")
    group.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.set_defaults(run=run)
    return parser


def add_job(parser: ArgumentParser) -> None:
    """What to erase, what to protect, and how."""
    group = parser.add_argument_group("what to erase and what to protect")
    add_concepts(group)
    add, lists = group.add_argument, builtin_retain_sets()
    help = (
        f"built-in lists of names to protect: {', '.join(lists)}, or none (default: those that suit"
        " the type)"
    )
    retain = add("--retain", action="append", default=[], metavar="LIST", help=help)
    complete_with(retain, *lists, NO_LIST)
    help = "your own list: txt, csv or json; - reads standard input"
    add("--retain-file", action="append", default=[], type=Path, metavar="FILE", help=help)
    add("--retain-column", default="", metavar="NAME", help="column of a csv list")
    add("--retain-limit", type=int, metavar="N", help="protect at most N names of the lists")
    _add_flags(group, [item for item in _FLAGS if item.name in _EVERYDAY])


def add_concepts(group: Any) -> None:
    """The flags that `concepts_from` reads."""
    help = (
        '"name", "name -> replacement" or "name | alias -> replacement || type"; repeatable, or one'
        " per line"
    )
    group.add_argument("--concepts", action="append", default=[], metavar="TEXT", help=help)
    help = "txt, csv or a LECO prompt file (toml); - reads standard input"
    group.add_argument(
        "--concepts-file", action="append", default=[], type=Path, metavar="FILE", help=help
    )
    help = "type of the concepts (default: style)"
    group.add_argument("--kind", choices=list(KINDS), default="style", help=help)


def add_expert_settings(parser: ArgumentParser) -> None:
    """The preset, a flag for every other public setting, and `--set` for the rest."""
    group = parser.add_argument_group("expert settings (defaults: those of the auto preset)")
    help = "the preset to start from (default: auto)"
    group.add_argument(
        "--preset", dest="preset_name", choices=list(PRESETS), default="auto", help=help
    )
    _add_flags(group, [item for item in _FLAGS if item.name not in _EVERYDAY])
    names = [item.name for item in dataclasses.fields(EraseSettings) if not item.metadata["public"]]
    help = f"any other setting; repeatable: {', '.join(names)}"
    action = group.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help=help
    )
    complete_with(action, *(f"{name}=" for name in names))


def _add_flags(group: Any, items: Iterable[dataclasses.Field[Any]]) -> None:
    """A flag for each of these settings."""
    defaults, hints = host_settings("auto").to_dict(), get_type_hints(EraseSettings)
    for item in items:
        flag, help = f"--{item.name.replace('_', '-')}", item.metadata["help"]
        kind, default = hints[item.name], defaults[item.name]
        options: dict[str, Any] = {"type": kind, "metavar": "N" if kind is int else "X"}
        if item.name == "drift_budget":
            help = (
                "How much other names may change to erase yours:"
                f" {', '.join(PRIORITIES)}, or a number such as 0.1. Used by the auto preset."
            )
            flag, options, default = "--priority", {"metavar": "PRIORITY"}, priority_name(default)
        elif kind is bool:
            options = {"action": argparse.BooleanOptionalAction}
            default = "yes" if default else "no"
        elif choices := get_args(kind):
            options = {"choices": choices}
        help = f"{help} (default: {default})".replace("%", "%%")
        action = group.add_argument(flag, dest=item.name, default=None, help=help, **options)
        if item.name == "drift_budget":
            complete_with(action, *PRIORITIES)


_EVERYDAY = ("drift_budget", "effort")
_FLAGS = tuple(
    item
    for item in dataclasses.fields(EraseSettings)
    if item.metadata["public"] and item.name != "preset_name"
)
"""The settings with a flag that changes the preset."""


def add_checkpoint(parser: ArgumentParser) -> None:
    """The model that a command works on."""
    help = "safetensors file or diffusers folder"
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help=help)


def add_text_setup(parser: ArgumentParser) -> None:
    """How text is turned into embeddings, and on which part of the machine."""
    add = parser.add_argument_group("text encoder").add_argument
    help = "hidden layer: 1 (or -1) the last, 2 the one before (default: the model's)"
    add("--clip-skip", type=int, metavar="N", help=help)
    help = (
        "folder with vocab.json and merges.txt (CLIP, Qwen), tokenizer.json (T5) or tokenizer.model"
        " (UMT5, Gemma), or a ComfyUI checkout"
    )
    add("--tokenizer", type=Path, metavar="PATH", help=help)
    help = (
        "a file or folder with a text encoder that the model file lacks; repeatable, in any order"
    )
    add("--text-encoder", action="append", default=[], type=Path, metavar="PATH", help=help)
    help = (
        "a textual inversion (safetensors) that a concept names as embedding:FILE, without its"
        " ending; repeatable"
    )
    add("--embedding", action="append", default=[], type=Path, metavar="FILE", help=help)
    add("--no-cache", action="store_true", help="don't read or write the embedding cache")
    add = parser.add_argument_group("this machine").add_argument
    help = (
        "where to compute: auto (default: a GPU with double precision, else the CPU), cpu, cuda,"
        " xpu, or a numbered GPU such as cuda:1"
    )
    complete_with(add("--device", default="auto", metavar="NAME", help=help), *DEVICES)
    help = "processor cores to compute with (default: torch's choice)"
    add("--threads", type=int, metavar="N", help=help)


def settings_from(args: Namespace) -> EraseSettings:
    """The preset, changed by the flags and by `--set`."""
    flags = {item.name: value for item in _FLAGS if (value := getattr(args, item.name)) is not None}
    if "drift_budget" in flags:
        flags["drift_budget"] = priority_of(flags["drift_budget"])
    assigned = parse_assignments(args.set)
    for name in flags.keys() & assigned.keys():
        raise SettingsError(
            f"The setting {name} is given twice, by its flag and by --set. Remove one."
        )
    return host_settings(args.preset_name, **flags, **assigned)


def job_from(args: Namespace, note: Callable[[str], None]) -> Job:
    """The job that the arguments describe; `note` receives remarks about its lists."""
    if [*args.concepts_file, *args.retain_file].count(STDIN) > 1:
        raise UsageError(
            "Standard input can be read only once. Use - for one option, and files for the others."
        )
    concepts = concepts_from(args)
    retain = _retain_from(args, tuple(concepts))
    for sentence in (*concepts.notes, *retain.notes):
        note(sentence)
    job = Job.of(tuple(concepts), retain, settings_from(args))
    return dataclasses.replace(job, blocklists=args.blocked[1]) if "blocked" in args else job


def concepts_from(args: Namespace) -> ConceptList:
    """Concepts on the command line, then those of files; at least one."""
    with as_usage_errors():
        total = parse_concepts("\n".join(args.concepts), args.kind, comments=False)
    for file in args.concepts_file:
        total = total + read_concepts(file, args.kind)
    total = total + args.blocked[0] if "blocked" in args else total
    if not total:
        raise UsageError(
            'No concepts to erase. Give --concepts "name -> replacement" or --concepts-file FILE.'
        )
    return total


def _retain_from(args: Namespace, concepts: tuple[Concept, ...]) -> RetainSet:
    lists = [name.strip() for text in args.retain for name in text.split(",") if name.strip()]
    available = builtin_retain_sets()
    for name in lists:
        if name not in (*available, NO_LIST):
            raise UsageError(
                f"There is no built-in list {name!r}{suggestion(name, available)}. Use one of:"
                f" {', '.join(available)}, {NO_LIST}."
            )
    sets = [builtin_retain(name) for name in lists if name != NO_LIST]
    sets += [read_retain(file, args.retain_column) for file in args.retain_file]
    with as_usage_errors():
        total = union(sets) if sets or lists else default_retain(concepts)
        return total if args.retain_limit is None else total.limit(args.retain_limit)


def stored_job_from(args: Namespace, note: Callable[[str], None]) -> StoredJob:
    """The job of `--recipe`, or of the file given as one; passes its notes on."""
    stored = job_of(load_recipe(args.recipe), str(args.recipe))
    for sentence in stored.notes:
        note(sentence)
    return stored


def strength_from(args: Namespace) -> float:
    """The requested strength."""
    with as_usage_errors():
        return check_strength(args.strength)


def path_or_url(text: str) -> Path | str:
    """A URL as it is: a path would lose one of its slashes."""
    return text if "://" in text else Path(text)


def add_outputs(parser: ArgumentParser, location: Callable[[str], Path | str] = Path) -> None:
    """Options about the files to write; `location` reads the value of `--out`."""
    group = parser.add_argument_group("files to write")
    add = group.add_argument
    add("--out", type=location, required=True, metavar="DIR", help="folder for the results")
    products = ",".join(PRODUCTS)
    help = f"any of {products} (default: all)"
    complete_with(add("--save", default=products, metavar="LIST", help=help), *PRODUCTS)
    add("--force", action="store_true", help="overwrite files that exist")
    help = "write nothing unless every concept is erased"
    add("--strict", action="store_true", help=help)
    add("--no-names", action="store_true", help="write numbers instead of names in every file")
    add_dry_run(group)


def add_dry_run(group: Any) -> None:
    """The flag of commands that write."""
    help = "check everything and show the plan; write nothing"
    group.add_argument("--dry-run", action="store_true", help=help)


def add_name(parser: ArgumentParser) -> None:
    """The flag of commands that write the files of one model."""
    help = "base name of the results (default: the model's name)"
    parser.add_argument("--name", default="", metavar="NAME", help=help)


def add_json_lines(parser: ArgumentParser) -> None:
    """The flag of commands that work on several models."""
    help = "print one JSON object per line: one per model, then the totals"
    parser.add_argument("--json-lines", action="store_true", help=help)


def outputs_from(args: Namespace, name: str = "") -> OutputFiles:
    """The files that the arguments ask for."""
    with as_usage_errors():
        products = parse_products(args.save.split(","))
        return OutputFiles(args.out, products, name, args.force, args.strict, args.no_names)
