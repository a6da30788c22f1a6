"""Names that must survive: built-in sets, a user's lists, and their union."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..errors import FileError, InputError, Notice, SettingsError
from .concept_list import Concept
from .kinds import BUILTIN_KINDS, context_kind
from .names import (
    MAX_LISTS,
    MAX_NAMES,
    WordIndex,
    cell,
    clean_name,
    content_lines,
    find_column,
    has_invisible,
    list_label,
    list_suffix,
    plain_label,
    quoted,
    read_text_file,
    same_name_key,
    table_rows,
)

LIST_SUFFIXES = (".txt", ".csv", ".tsv", ".json")
BUILTIN_FOLDER = Path(__file__).resolve().parent / "retain_sets"
NAME_COLUMNS = ("name", "concept", "target", "text", "artist", "title")


@dataclass(frozen=True)
class RetainSource:
    """A list that a retain set was made from: its name, and a hash that shows when it changes."""

    label: str
    kind: str
    """Kind whose templates fit the names; empty: the kind of the concepts that are erased."""
    count: int
    sha256: str
    """Hash of the names, folded and sorted: the same for the same names in any order."""


@dataclass(frozen=True)
class RetainSet:
    """Names without repeats, in the order in which they were first read."""

    names: tuple[str, ...] = ()
    origins: tuple[int, ...] = ()
    """For each name the index of its source."""
    sources: tuple[RetainSource, ...] = ()
    cleaned: int = field(default=0, compare=False)
    """Number of names from which invisible characters were removed."""

    def __post_init__(self) -> None:
        if len(self.names) > MAX_NAMES:
            raise InputError(
                f"There are {len(self.names):,} protected names. Protect at most {MAX_NAMES:,}.",
                code="too_many_names",
                count=len(self.names),
                limit=MAX_NAMES,
            )
        if len(self.sources) > MAX_LISTS:
            raise InputError(
                f"The protected names come from {len(self.sources)} lists. Join them into at most"
                f" {MAX_LISTS}.",
                code="too_many_lists",
                count=len(self.sources),
                limit=MAX_LISTS,
            )

    def __len__(self) -> int:
        return len(self.names)

    def __or__(self, other: RetainSet) -> RetainSet:
        """Union; a name that both have keeps its first source."""
        keys = {same_name_key(name) for name in self.names}
        added = [i for i, name in enumerate(other.names) if same_name_key(name) not in keys]
        return RetainSet(
            self.names + tuple(other.names[i] for i in added),
            self.origins + tuple(other.origins[i] + len(self.sources) for i in added),
            self.sources + other.sources,
            self.cleaned + other.cleaned,
        )

    @property
    def notes(self) -> tuple[Notice, ...]:
        """What is worth knowing."""
        if not self.cleaned:
            return ()
        names = "1 name" if self.cleaned == 1 else f"{self.cleaned:,} names"
        text = f"Invisible characters were removed from {names} to protect."
        return (Notice(text, code="invisible_in_protected", count=self.cleaned),)

    @property
    def sha256(self) -> str:
        """Hash of the names, whatever their order."""
        return _digest(self.names)

    def limit(self, count: int) -> RetainSet:
        """At most `count` names, evenly from the alphabet: the order of a file does not matter."""
        if count < 1:
            raise SettingsError(f"Invalid limit {count} for protected names. Use 1 or more.")
        if count >= len(self.names):
            return self
        alphabetical = sorted(range(len(self.names)), key=lambda i: same_name_key(self.names[i]))
        return self.take(sorted(alphabetical[i * len(self.names) // count] for i in range(count)))

    def take(self, indices: Sequence[int]) -> RetainSet:
        """The names at these indices; all sources stay."""
        return replace(
            self,
            names=tuple(self.names[i] for i in indices),
            origins=tuple(self.origins[i] for i in indices),
        )

    def kind_of_name(self, index: int, default: str) -> str:
        """The kind whose templates a name is put into."""
        return self.sources[self.origins[index]].kind or default


def retain_from_texts(texts: Iterable[tuple[str, str]], label: str, kind: str = "") -> RetainSet:
    """A set from names as people wrote them; empty ones are skipped, and repeats, whatever their
    case, count once.

    Args:
        texts: (where the name is, for messages; the name).
        label: What messages and recipes call the list.
        kind: Kind whose templates fit the names; empty: that of the erased concepts.
    """
    if kind:
        context_kind(kind)
    by_key: dict[str, str] = {}
    cleaned = 0
    for where, text in texts:
        cleaned += has_invisible(text)
        if name := clean_name(text, where):
            by_key.setdefault(same_name_key(name), name)
        if len(by_key) > MAX_NAMES:
            raise InputError(
                f"{label} has more than {MAX_NAMES:,} names. Keep only those that matter.",
                code="list_too_long",
                file=label,
                limit=MAX_NAMES,
            )
    names = tuple(by_key.values())
    source = RetainSource(plain_label(label), kind, len(names), _digest(names))
    return RetainSet(names, (0,) * len(names), (source,), cleaned)


def retain_from_names(names: Iterable[str], label: str, kind: str = "") -> RetainSet:
    """As `retain_from_texts`, for names that are on no line of a file.

    Args:
        names: The names.
        label: What messages and recipes call the list.
        kind: Kind whose templates fit the names; empty: that of the erased concepts.
    """
    return retain_from_texts(((label, name) for name in names), label, kind)


def parse_retain(text: str, label: str = "typed", kind: str = "") -> RetainSet:
    """One name per line; `#` opens a comment.

    Args:
        text: The list.
        label: What messages and recipes call it.
        kind: Kind whose templates fit the names; empty: that of the erased concepts.
    """
    lines = ((f"{label}, line {number}", line) for number, line in content_lines(text))
    return retain_from_texts(lines, label, kind)


def parse_retain_table(
    text: str, label: str = "table", column: str = "", kind: str = ""
) -> RetainSet:
    """One column of a csv with a header.

    Args:
        text: The table.
        label: What messages and recipes call it.
        column: The column; empty: the first of `NAME_COLUMNS` that it has.
        kind: Kind whose templates fit the names; empty: that of the erased concepts.
    """
    header, rows = table_rows(text, label)
    index = find_column(header, (column,) if column else NAME_COLUMNS, label)
    cells = ((f"{label}, line {number}", cell(row, index)) for number, row in rows)
    return retain_from_texts(cells, label, kind)


def parse_retain_json(text: str, label: str = "json", kind: str = "") -> RetainSet:
    """A list of strings, or an object whose `names` is one.

    Args:
        text: JSON.
        label: What messages and recipes call the list.
        kind: Kind whose templates fit the names; empty: that of the erased concepts.
    """
    try:
        data = json.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{label} is not valid JSON ({str(error)[:80]}). Check the file.",
            code="bad_json",
            file=label,
        ) from error
    names = data.get("names") if isinstance(data, dict) else data
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(
            f'{label} must be a list of strings, or {{"names": [a list of strings]}}.',
            code="json_not_a_list",
            file=label,
        )
    entries = ((f"{label}, entry {number}", name) for number, name in enumerate(names, start=1))
    return retain_from_texts(entries, label, kind)


def read_retain(path: str | Path, column: str = "", kind: str = "") -> RetainSet:
    """Reads a user's list.

    Args:
        path: A `.csv` or `.tsv` table, a `.json` file, or a text file with one name per line; `-`
            is standard input.
        column: Column of a table that has the names; empty: the first of `NAME_COLUMNS`.
        kind: Kind whose templates fit the names; empty: that of the erased concepts.
    """
    path = Path(path)
    suffix, label = list_suffix(path, LIST_SUFFIXES), list_label(path)
    text = read_text_file(path)
    if suffix == ".json":
        return parse_retain_json(text, label, kind)
    if suffix == ".txt":
        return parse_retain(text, label, kind)
    return parse_retain_table(text, label, column, kind)


@functools.cache
def builtin_retain_sets() -> tuple[str, ...]:
    """Names of the sets that come with the package."""
    return tuple(sorted(path.stem for path in BUILTIN_FOLDER.glob("*.txt")))


@functools.cache
def builtin_retain(name: str) -> RetainSet:
    """One set that comes with the package."""
    if name not in builtin_retain_sets():
        raise FileError(
            f"There is no built-in list {quoted(name)}. Choose one of"
            f" {', '.join(builtin_retain_sets()) or 'none'}.",
            code="unknown_list",
            name=name,
        )
    text = read_text_file(BUILTIN_FOLDER / f"{name}.txt")
    return parse_retain(text, name, BUILTIN_KINDS.get(name, ""))


def union(sets: Iterable[RetainSet]) -> RetainSet:
    """All names of all sets."""
    return functools.reduce(RetainSet.__or__, sets, RetainSet())


def drop_targets(
    retain: RetainSet, concepts: Iterable[Concept]
) -> tuple[RetainSet, tuple[str, ...]]:
    """The set without names that contain a target or alias as whole words, and the names dropped.

    A retained `Van Gogh Museum` would hold the edit back from `Van Gogh`.
    """
    index = WordIndex(phrase for concept in concepts for phrase in concept.phrases)
    dropped = {i: name for i, name in enumerate(retain.names) if index.match(name) is not None}
    retained = retain.take([i for i in range(len(retain)) if i not in dropped])
    return retained, tuple(dropped.values())


def _digest(names: Iterable[str]) -> str:
    canonical = "\n".join(sorted(same_name_key(name) for name in names))
    return hashlib.sha256(canonical.encode()).hexdigest()
