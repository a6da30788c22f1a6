"""Names that must survive: built-in sets, a user's lists, and their union."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..errors import FileError, InputError, SettingsError
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
    """Where a part of a retain set came from: enough for a report or a recipe to name it and to
    find it changed.
    """

    label: str
    kind: str
    """Kind whose contexts the names fit into; empty: the kind of the concepts that are erased."""
    count: int
    sha256: str
    """Of the names, folded and sorted: the same for the same names in any order."""


@dataclass(frozen=True)
class RetainSet:
    """Names without repeats, in the order they were first met."""

    names: tuple[str, ...] = ()
    origins: tuple[int, ...] = ()
    """For each name the index of its source."""
    sources: tuple[RetainSource, ...] = ()
    cleaned: int = field(default=0, compare=False)
    """How many names invisible characters were removed from."""

    def __post_init__(self) -> None:
        if len(self.names) > MAX_NAMES:
            raise InputError(
                f"There are {len(self.names):,} names to keep: keep at most {MAX_NAMES:,}."
            )
        if len(self.sources) > MAX_LISTS:
            raise InputError(
                f"The names to keep come from {len(self.sources)} lists: join them into at most"
                f" {MAX_LISTS}."
            )

    def __len__(self) -> int:
        return len(self.names)

    def __or__(self, other: RetainSet) -> RetainSet:
        """Union; a name that both have keeps its first source."""
        known = {same_name_key(name) for name in self.names}
        extra = [i for i, name in enumerate(other.names) if same_name_key(name) not in known]
        shift = len(self.sources)
        return RetainSet(
            self.names + tuple(other.names[i] for i in extra),
            self.origins + tuple(other.origins[i] + shift for i in extra),
            self.sources + other.sources,
            self.cleaned + other.cleaned,
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What is worth knowing, one sentence each."""
        if not self.cleaned:
            return ()
        names = "1 name" if self.cleaned == 1 else f"{self.cleaned:,} names"
        return (f"Invisible characters were removed from {names} to keep.",)

    @property
    def sha256(self) -> str:
        """Hash of the names, whatever their order."""
        return _digest(self.names)

    def limit(self, count: int) -> RetainSet:
        """At most `count` names, spread evenly over the alphabet, so that the order of a file does
        not matter.
        """
        if count < 1:
            raise SettingsError(f"The limit for kept names is {count}: it must be at least 1.")
        if count >= len(self.names):
            return self
        alphabetical = sorted(range(len(self.names)), key=lambda i: same_name_key(self.names[i]))
        picked = sorted(alphabetical[i * len(self.names) // count] for i in range(count))
        return self.take(picked)

    def take(self, indices: Sequence[int]) -> RetainSet:
        """The chosen names; the sources stay, as they tell where the names came from."""
        return replace(
            self,
            names=tuple(self.names[i] for i in indices),
            origins=tuple(self.origins[i] for i in indices),
        )

    def kind_of_name(self, index: int, default: str) -> str:
        """The kind whose contexts a name is read in."""
        return self.sources[self.origins[index]].kind or default


def retain_from_names(names: Iterable[str], label: str, kind: str = "") -> RetainSet:
    """A set from folded names; repeats (whatever their case) count once."""
    if kind:
        context_kind(kind)
    unique: dict[str, str] = {}
    for name in names:
        unique.setdefault(same_name_key(name), name)
        if len(unique) > MAX_NAMES:
            raise InputError(
                f"{label} has more than {MAX_NAMES:,} names: keep only those that matter."
            )
    kept = tuple(unique.values())
    return RetainSet(
        kept, (0,) * len(kept), (RetainSource(plain_label(label), kind, len(kept), _digest(kept)),)
    )


def retain_from_texts(texts: Iterable[tuple[str, str]], label: str, kind: str = "") -> RetainSet:
    """A set from names as they were written, each with its place for messages; empty ones are
    passed over.
    """
    cleaned = 0

    def names() -> Iterator[str]:
        nonlocal cleaned
        for where, text in texts:
            cleaned += has_invisible(text)
            if name := clean_name(text, where):
                yield name

    return replace(retain_from_names(names(), label, kind), cleaned=cleaned)


def parse_retain(text: str, label: str = "typed", kind: str = "") -> RetainSet:
    """One name a line, `#` comments."""
    return retain_from_texts(
        ((f"{label}, line {n}", line) for n, line in content_lines(text)), label, kind
    )


def parse_retain_table(
    text: str, label: str = "table", column: str = "", kind: str = ""
) -> RetainSet:
    """One column of a csv, by its name; without one, `name` or `concept` and the like."""
    header, rows = table_rows(text, label)
    index = find_column(header, (column,) if column else NAME_COLUMNS, label)
    return retain_from_texts(
        ((f"{label}, line {n}", cell(row, index)) for n, row in rows), label, kind
    )


def parse_retain_json(text: str, label: str = "json", kind: str = "") -> RetainSet:
    """A list of strings, or an object whose `names` is one."""
    try:
        data = json.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{label} is not valid JSON ({str(error)[:80]}): check the file."
        ) from error
    names = data.get("names") if isinstance(data, dict) else data
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f'{label} must be a list of strings, or {{"names": [a list of strings]}}.')
    return retain_from_texts(
        ((f"{label}, entry {n}", name) for n, name in enumerate(names, start=1)), label, kind
    )


def read_retain(path: str | Path, column: str = "", kind: str = "") -> RetainSet:
    """Reads a user's list: `.csv` and `.tsv` by column, `.json`, else one name a line. `-`:
    standard input.
    """
    file = Path(path)
    suffix, label = list_suffix(file, LIST_SUFFIXES), list_label(file)
    text = read_text_file(file)
    if suffix == ".json":
        return parse_retain_json(text, label, kind)
    return (
        parse_retain(text, label, kind)
        if suffix == ".txt"
        else parse_retain_table(text, label, column, kind)
    )


def builtin_retain_sets() -> tuple[str, ...]:
    """Names of the sets that come with the package."""
    return tuple(sorted(file.stem for file in BUILTIN_FOLDER.glob("*.txt")))


def builtin_retain(name: str) -> RetainSet:
    """One set that comes with the package."""
    known = builtin_retain_sets()
    if name not in known:
        raise FileError(
            f"There is no built-in retain set {quoted(name)}: choose one of"
            f" {', '.join(known) or 'none'}."
        )
    return parse_retain(
        read_text_file(BUILTIN_FOLDER / f"{name}.txt"), name, BUILTIN_KINDS.get(name, "")
    )


def union(sets: Iterable[RetainSet]) -> RetainSet:
    """All names of all sets."""
    total = RetainSet()
    for part in sets:
        total = total | part
    return total


def drop_targets(
    retain: RetainSet, concepts: Iterable[Concept]
) -> tuple[RetainSet, tuple[str, ...]]:
    """The set without names that contain a target or alias as whole words, and the names dropped,
    for the report.

    A retained `Van Gogh Museum` would hold the edit back from `Van Gogh`.
    """
    index = WordIndex(phrase for concept in concepts for phrase in concept.phrases)
    hits = [index.match(name) is not None for name in retain.names]
    kept = retain.take([i for i, hit in enumerate(hits) if not hit])
    return kept, tuple(name for name, hit in zip(retain.names, hits, strict=True) if hit)


def _digest(names: Iterable[str]) -> str:
    canonical = "\n".join(sorted(same_name_key(name) for name in names))
    return hashlib.sha256(canonical.encode()).hexdigest()
