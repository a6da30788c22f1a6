"""`run`: a job file says in YAML all that `erase` is told by flags. Both become the same arguments.

Anybody may have written the file: it is small, plain data, and every key and type in it is known.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from ..engine.settings import EraseSettings
from ..errors import FileError, NotFoundError, UsageError, suggestion
from ..job import StoredJob
from ..text.names import fold
from . import erase
from .batch import clean_many
from .console import Console
from .options import (
    STDIN,
    add_dry_run,
    add_json_lines,
    add_machine,
    command,
    job_from,
    outputs_from,
    strength_from,
)

MOST_BYTES = 500_000
"""Longer lists belong in files of their own; YAML is read at a tenth of a megabyte a second."""
MOST_LEVELS = 20
FromFile = Literal["text", "texts", "path", "paths", "number", "whole", "flag", "no flag", "any"]

_KEYS: dict[str, dict[str, tuple[str, FromFile]]] = {
    "": {"kind": ("kind", "text"), "strength": ("strength", "number")},
    "keep": {
        "lists": ("retain", "texts"),
        "files": ("retain_file", "paths"),
        "names": ("retain_names", "texts"),
        "column": ("retain_column", "text"),
        "limit": ("retain_limit", "whole"),
    },
    "settings": {
        {"preset_name": "preset", "drift_budget": "budget"}.get(item.name, item.name): (
            item.name,
            "any",
        )
        for item in dataclasses.fields(EraseSettings)
    },
    "text": {
        "encoders": ("text_encoder", "paths"),
        "tokenizer": ("tokenizer", "path"),
        "clip_skip": ("clip_skip", "whole"),
        "cache": ("no_cache", "no flag"),
    },
    "output": {
        "folder": ("out", "path"),
        "save": ("save", "texts"),
        "name": ("name", "text"),
        "force": ("force", "flag"),
        "strict": ("strict", "flag"),
        "redact": ("redact", "flag"),
        "salt_file": ("salt_file", "path"),
    },
}
"""{section: {key: (argument of `erase`, what stands there)}}; the first section is the file
itself.
"""
_OWN = ("model", "models", "concepts")
_CONCEPT = ("name", "anchor", "aliases", "kind", "file")
_MARKS = re.compile(r"\||->|→")


def add_to(subparsers: Any) -> None:
    """Declares the command."""
    help = (
        "Do what a job file says: one YAML file with models, concepts, kept names, settings and"
        " outputs."
    )
    parser = command(subparsers, "run", run, help)
    parser.add_argument(
        "job",
        type=Path,
        metavar="JOB",
        help="a .yaml file; - reads YAML from standard input",
    )
    add_dry_run(parser)
    add_json_lines(parser)
    add_machine(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """One model as `erase` does it, several as `batch` does."""
    models, order = read_job(args.job)
    for name in ("device", "threads", "dry_run"):
        setattr(order, name, getattr(args, name))
    if len(models) == 1:
        order.checkpoint = models[0]
        return erase.run(order, console)
    stored = StoredJob(job_from(order, console.note), strength_from(order), None, ())
    outputs = outputs_from(order, console.note, order.name)
    from ..checkpoints.batch import Candidate

    return clean_many(
        order, [Candidate(path, outputs, str(path)) for path in models], stored, console
    )


def read_job(path: Path) -> tuple[list[Path], argparse.Namespace]:
    """The models of a job file, and the arguments of `erase` that say the rest."""
    where = "The job" if path == STDIN else str(path)
    content = _load(path, where)
    reader = _Reader(where, Path() if path == STDIN else path.parent)
    order = _defaults()
    sections = {"": content} | {name: content.get(name, {}) for name in _KEYS if name}
    for section, values in sections.items():
        known = (*_KEYS[section], *(() if section else (*_OWN, *filter(None, _KEYS))))
        for key, value in reader.mapping(values, section, known):
            if key in _KEYS[section]:
                dest, kind = _KEYS[section][key]
                setattr(
                    order, dest, reader.value(kind, value, f"{section}.{key}" if section else key)
                )
    order.save = order.save if isinstance(order.save, str) else ",".join(order.save)
    order.drift_budget = None if order.drift_budget is None else str(order.drift_budget)
    for item in dataclasses.fields(EraseSettings):
        if not item.metadata["public"] and hasattr(order, item.name):
            order.set.append(f"{item.name}={getattr(order, item.name)}")
    order.concepts, order.concepts_file = reader.concepts(content.get("concepts"))
    models = reader.models(content)
    if order.out is None:
        raise UsageError(
            f"{where} does not say where the results go: give `folder` under `output`."
        )
    return models, order


def _defaults() -> argparse.Namespace:
    """What `erase` takes where nothing is said."""
    from .parser import build_parser

    order = build_parser().parse_args(["erase", "model", "--out", "folder"])
    order.out = None
    return order


class _Reader:
    """Checks what stands in the file. Paths are relative to it."""

    def __init__(self, where: str, base: Path) -> None:
        self.where, self.base = where, base

    def mapping(self, value: Any, name: str, known: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        """The entries of a section; refuses a key that it does not have."""
        what = f"`{name}`" if name else "the job"
        if not isinstance(value, Mapping):
            raise UsageError(
                f"{self.where}: {what} must be a mapping of keys such as {', '.join(known[:3])}."
            )
        for key in value:
            if key not in known:
                near = suggestion(str(key), known) or f": it takes {', '.join(known)}"
                raise UsageError(f"{self.where}: {what} has no key {str(key)[:60]!r}{near}.")
        yield from value.items()

    def value(self, kind: FromFile, value: Any, name: str) -> Any:
        """A value as the arguments have it."""
        if kind in ("texts", "paths"):
            single: FromFile = "text" if kind == "texts" else "path"
            return [
                self.value(single, one, name)
                for one in (value if isinstance(value, list) else [value])
            ]
        types, words = _TYPES[kind]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            quoted = (
                ": put it in quotes"
                if kind in ("text", "path") and not isinstance(value, (list, Mapping))
                else ""
            )
            raise UsageError(
                f"{self.where}: `{name}` is {str(value)[:60]!r}, but must be {words}{quoted}."
            )
        if kind == "path":
            return self.base / Path(str(value)).expanduser()
        return not value if kind == "no flag" else value

    def models(self, content: Mapping[str, Any]) -> list[Path]:
        """One or several, under either name."""
        if ("model" in content) == ("models" in content):
            raise UsageError(
                f"{self.where} must name its `model`, or several `models`, and not both."
            )
        found = self.value("paths", content.get("model", content.get("models")), "model")
        if not found:
            raise UsageError(f"{self.where} names no model.")
        return list(found)

    def concepts(self, content: Any) -> tuple[list[str], list[Path]]:
        """Lines, mappings and files, in any order; files come last, as on the command line."""
        typed, files = [], []
        for number, one in enumerate(
            content if isinstance(content, list) else [content] if content else [], 1
        ):
            source = f"{self.where}, concept {number}"
            if isinstance(one, Mapping) and "file" in one and len(one) == 1:
                files.append(self.value("path", one["file"], "concepts.file"))
            elif isinstance(one, Mapping):
                typed.append(self._concept(dict(self.mapping(one, "concepts", _CONCEPT)), source))
            else:
                typed.append(self.value("text", one, "concepts"))
        return typed, files

    def _concept(self, entry: dict[str, Any], source: str) -> str:
        if "name" not in entry or "file" in entry:
            raise UsageError(f"{source}: give its `name`, or a `file` alone.")
        phrases = [
            self.value("text", entry["name"], "name"),
            *self.value("texts", entry.get("aliases", []), "aliases"),
        ]
        anchor = self.value("text", entry["anchor"], "anchor") if "anchor" in entry else None
        for text in filter(None, (*phrases, anchor)):
            if "\n" in text or _MARKS.search(fold(text)):
                raise UsageError(
                    f"{source}: {text[:60]!r} contains '|', an arrow or a line break; write a name"
                    " only."
                )
        line = " | ".join(phrases) + ("" if anchor is None else f" -> {anchor}")
        return f"{line} || {self.value('text', entry['kind'], 'kind')}" if "kind" in entry else line


_TYPES: dict[FromFile, tuple[tuple[type, ...], str]] = {
    "text": ((str,), "text"),
    "path": ((str,), "a path"),
    "number": ((int, float), "a number"),
    "whole": ((int,), "a whole number"),
    "flag": ((bool,), "true or false"),
    "no flag": ((bool,), "true or false"),
    "any": ((str, int, float, bool), "a word, a number, or true or false"),
}


def _load(path: Path, where: str) -> Mapping[str, Any]:
    """The file as plain data, checked for nothing but that."""
    suffix = ".yaml" if path == STDIN else path.suffix.lower()
    if suffix not in (".yaml", ".yml"):
        raise UsageError(f"{where} is not a job file: its name must end in .yaml or .yml.")
    try:
        text = _content(path, where).decode("utf-8-sig")
        found = _from_yaml(text)
    except UnicodeDecodeError as error:
        raise FileError(
            f"{where} is not UTF-8 text (byte {error.start}): save it as UTF-8."
        ) from error
    except (ValueError, RecursionError, OverflowError) as error:
        reason = " ".join(str(error).split())[:200] or "it is nested too deeply"
        raise UsageError(f"{where} cannot be read as YAML: {reason}.") from error
    if not isinstance(found, Mapping):
        raise UsageError(
            f"{where} is not a job: it must be a mapping that begins like `model:"
            " file.safetensors`."
        )
    return found


def _content(path: Path, where: str) -> bytes:
    try:
        if path == STDIN:
            content = sys.stdin.buffer.read(MOST_BYTES + 1) if sys.stdin is not None else b""
        else:
            with path.open("rb") as handle:
                content = handle.read(MOST_BYTES + 1)
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no job file {path}: check the path.") from error
    except OSError as error:
        raise FileError(f"Cannot read {where}: {error.strerror or error}.") from error
    if len(content) > MOST_BYTES:
        raise FileError(
            f"{where} is longer than {MOST_BYTES // 1000} kB: put long lists into files and name"
            " those."
        )
    return content


def _from_yaml(text: str) -> Any:
    """Plain data only, without references: a few lines of them can stand for more than any memory
    holds.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        level = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise ValueError(
                    f"it refers to another place (*{self.peek_event().anchor}), which jobs"
                    " cannot do"
                )
            self.level += 1
            if self.level > MOST_LEVELS:
                raise ValueError("it is nested too deeply")
            node = super().compose_node(parent, index)
            self.level -= 1
            return node

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen: set[str] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode):
                    if key.value in seen:
                        raise ValueError(f"the key {key.value!r} occurs twice")
                    seen.add(key.value)
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
