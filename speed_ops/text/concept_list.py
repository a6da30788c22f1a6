"""Concepts as a user writes them: one per line, `name | alias -> anchor || kind`."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import overload

from ..errors import InputError, SpeedError, suggestion
from .kinds import KINDS, kind_of
from .names import (
    INVISIBLE,
    MAX_ALIASES,
    MAX_CONCEPTS,
    WordIndex,
    cell,
    clean_name,
    content_lines,
    find_column,
    fold,
    has_invisible,
    invisible_note,
    list_label,
    list_suffix,
    quoted,
    read_text_file,
    refuse_control,
    same_name_key,
    table_rows,
)

_ARROW = re.compile(rf"-{INVISIBLE.pattern}*>|→")
_SHAFTS = "-‐‑‒–—―−⁃˗﹘﹣－=＝~～"
_DRAWN_ARROW = re.compile(rf"<?[{_SHAFTS}]+\s*[>＞]+")
"""What people type for an arrow: `->`, which is one, and `=>`, `-->`, `—>`, `- >` and the like,
which are not.
"""
_OTHER_ARROWS = "".join(
    chr(code)
    for first, last in (
        (0x2190, 0x21FF),
        (0x2794, 0x27FF),
        (0x2900, 0x297F),
        (0x2B00, 0x2BFF),
        (0x1F800, 0x1F8FF),
    )
    for code in range(first, last + 1)
    if "RIGHTWARDS" in unicodedata.name(chr(code), "") and chr(code) != "→"
)
_OTHER_ARROW = re.compile(rf"(?<=\S)(?<!\u200d)\s*([{_OTHER_ARROWS}￫])")
"""Arrows to the right after a name; one that ends an emoji (a runner to the right) is none."""
_FILE_NAME = re.compile(
    r"@(?:.+\.(?:txt|csv|tsv|json|xlsx?|ods|docx?|odt|rtf|md|ya?ml|toml|xml|html?|pdf|list|lst)|[.~]{0,2}[/\\].*)",
    re.IGNORECASE,
)
KIND_MARK = "||"
"""Before the kind of one line. No list from before it can hold one: it was an empty alias, which is
refused.
"""
TARGET_COLUMNS = ("target", "concept", "name")
LIST_SUFFIXES = (".txt", ".csv", ".tsv")


@dataclass(frozen=True)
class Concept:
    """One thing to erase and what it becomes."""

    target: str
    anchor: str
    """What the target's outputs become; empty: as if the name had been left out."""
    kind: str
    aliases: tuple[str, ...] = ()
    """Other names for the same thing, erased with it."""
    line: int = 0
    source: str = ""
    """File or list the line stands in; empty for typed text."""
    cleaned: tuple[str, ...] = field(default=(), compare=False)
    """Those of its names that invisible characters were removed from."""

    @property
    def phrases(self) -> tuple[str, ...]:
        """The target and its aliases."""
        return (self.target, *self.aliases)

    @property
    def where(self) -> str:
        """The place to look, for messages."""
        return _place(self.source, self.line)

    def as_line(self, with_kind: bool = False) -> str:
        """The line that parses to this concept; `with_kind`, in a list of any kind."""
        line = f"{' | '.join(self.phrases)} -> {self.anchor}".rstrip()
        return f"{line} {KIND_MARK} {self.kind}" if with_kind else line


@dataclass(frozen=True)
class ConceptList(Sequence[Concept]):
    """Concepts that do not contradict each other; made by parsing or by adding lists."""

    concepts: tuple[Concept, ...] = ()

    def __post_init__(self) -> None:
        if len(self.concepts) > MAX_CONCEPTS:
            raise InputError(
                f"There are {len(self.concepts):,} concepts: erase at most {MAX_CONCEPTS:,} in one"
                " list."
            )
        known = _Known()
        for concept in self.concepts:
            _refuse_many_aliases(concept)
        for concept in self.concepts:
            known.add(concept)

    def __len__(self) -> int:
        return len(self.concepts)

    def __iter__(self) -> Iterator[Concept]:
        return iter(self.concepts)

    @overload
    def __getitem__(self, index: int) -> Concept: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Concept]: ...
    def __getitem__(self, index: int | slice) -> Concept | Sequence[Concept]:
        return self.concepts[index]

    def __add__(self, other: ConceptList) -> ConceptList:
        """Both lists, checked against each other."""
        return ConceptList(self.concepts + other.concepts)

    def as_text(self) -> str:
        """The list as a user would type it; the kinds stand in it where there are several."""
        mixed = len({concept.kind for concept in self.concepts}) > 1
        return "\n".join(concept.as_line(mixed) for concept in self.concepts)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is allowed but worth knowing, one sentence each."""
        return tuple(_notes(self.concepts))


def parse_concepts(text: str, kind: str, source: str = "", *, comments: bool = True) -> ConceptList:
    """Parses typed text: `target`, `target -> anchor`, `target | alias -> anchor`; `target ->`
    leaves the name out.

    `|| style` at the end of a line gives it a kind of its own. Commas, parentheses and braces are
    part of a name. `#` at the start of a line or after a space opens a comment, unless there are no
    `comments`.
    """
    kind_of(kind)
    lines = content_lines(text, comments)
    return ConceptList(tuple(_line_concept(line, kind, number, source) for number, line in lines))


@dataclass(frozen=True)
class ReadLine:
    """One line of a list as it was understood."""

    line: int
    concept: Concept | None
    problem: str
    """Why it is refused, in the words that a run would use; empty where it is not."""


def read_lines(text: str, kind: str) -> list[ReadLine]:
    """As `parse_concepts`, for somebody who is still writing: every line is read, whatever is wrong
    with others.
    """
    found: list[ReadLine] = []
    known = _Known()
    for number, line in content_lines(text):
        concept = None
        try:
            concept = _line_concept(line, kind, number, "")
            _refuse_many_aliases(concept)
            known.add(concept)
            found.append(ReadLine(number, concept, ""))
        except SpeedError as error:
            found.append(ReadLine(number, concept, str(error)))
    return found


def _line_concept(line: str, kind: str, number: int, source: str) -> Concept:
    where = _place(source, number)
    line, own_kind = _without_kind(line, where)
    kind = own_kind or kind
    _refuse_look_alikes(fold(line), where)
    parts = _ARROW.split(line)
    if len(parts) > 2:
        raise InputError(
            f"{where}: there is more than one arrow; write one concept per line, as 'name ->"
            " anchor'."
        )
    names = parts[0].split("|")
    target, aliases = _phrases(names, where)
    anchor = clean_name(parts[1], where) if len(parts) == 2 else kind_of(kind).anchor
    if "|" in anchor:
        raise InputError(f"{where}: put aliases before the arrow; the anchor is a single phrase.")
    return Concept(target, anchor, kind, aliases, number, source, _cleaned([*names, *parts[1:]]))


def _without_kind(line: str, where: str) -> tuple[str, str]:
    """The line without the kind at its end, and that kind; empty where it has none of its own."""
    rest, mark, written = line.rpartition(KIND_MARK)
    if not mark:
        return line, ""
    kind = fold(written).casefold()
    if kind not in KINDS:
        wrong = (
            f"there is no kind {quoted(kind)}{suggestion(kind, KINDS)}"
            if kind
            else "the kind is missing"
        )
        raise InputError(
            f"{where}: {wrong}; after '{KIND_MARK}' write {', '.join(KINDS)}. A single '|' stands"
            " before an alias."
        )
    return rest, kind


def parse_concept_table(text: str, kind: str, source: str = "") -> ConceptList:
    """Parses csv: a column `target`, `concept` or `name`; `anchor`, `aliases` (split at `|`) and
    `kind` if present.

    An empty cell takes the default: the kind given here, or the anchor of the row's kind.
    """
    name = source or "The table"
    header, rows = table_rows(text, name)
    target_column = find_column(header, TARGET_COLUMNS, name)
    optional = {
        key: header.index(key) if key in header else None for key in ("anchor", "aliases", "kind")
    }
    found: list[Concept] = []
    for number, row in rows:
        where = _place(source, number)
        row_kind = cell(row, optional["kind"]).strip().casefold() or kind
        names = [
            cell(row, target_column),
            *filter(str.strip, cell(row, optional["aliases"]).split("|")),
        ]
        for one in names:
            _refuse_look_alikes(fold(one), where)
        target, aliases = _phrases(names, where)
        own_anchor = cell(row, optional["anchor"])
        anchor = clean_name(own_anchor, where) or kind_of(row_kind).anchor
        found.append(
            Concept(
                target, anchor, row_kind, aliases, number, source, _cleaned([*names, own_anchor])
            )
        )
    return ConceptList(tuple(found))


def read_concepts(path: str | Path, kind: str) -> ConceptList:
    """Reads a list: a table where its name ends in `.csv` or `.tsv`, else one concept a line. `-`:
    standard input.
    """
    file = Path(path)
    parse = parse_concepts if list_suffix(file, LIST_SUFFIXES) == ".txt" else parse_concept_table
    return parse(read_text_file(file), kind, list_label(file))


def _cleaned(raw: Sequence[str]) -> tuple[str, ...]:
    """Names that stand for something else than what was written, as far as one could not see it."""
    return tuple(name for text in raw if has_invisible(text) and (name := fold(text)))


def _refuse_look_alikes(line: str, where: str) -> None:
    """What was meant as an arrow or as a file would otherwise be taken for a part of a name."""
    refuse_control(line, where)
    if _FILE_NAME.fullmatch(line):
        raise InputError(
            f"{where}: {quoted(line)} looks like a file: give it with --concepts-file on the"
            " command line, or as the node's file."
        )
    drawn = [found.group() for found in _DRAWN_ARROW.finditer(line) if found.group() != "->"]
    drawn += [found.group(1) for found in _OTHER_ARROW.finditer(line)]
    if drawn:
        raise InputError(
            f"{where}: {quoted(drawn[0])} is not an arrow here; write '->', as in 'name -> anchor'."
        )


def _place(source: str, line: int) -> str:
    return f"{source}, line {line}" if source else f"Line {line}"


def _phrases(parts: Sequence[str], where: str) -> tuple[str, tuple[str, ...]]:
    names = [clean_name(part, where) for part in parts]
    if not names[0]:
        raise InputError(f"{where}: there is no name to erase; write 'name -> anchor'.")
    if not all(names):
        raise InputError(f"{where}: an alias is empty; remove the extra '|'.")
    for name in names:
        if "|" in name or _ARROW.search(name):
            raise InputError(
                f"{where}: {quoted(name)} contains '|' or an arrow, which cannot be part of a name."
            )
    return names[0], tuple(names[1:])


def _refuse_many_aliases(concept: Concept) -> None:
    if len(concept.aliases) > MAX_ALIASES:
        count = f"{len(concept.aliases)} aliases; the limit is {MAX_ALIASES}"
        raise InputError(f"{concept.where}: {quoted(concept.target)} has {count}.")


class _Known:
    """Concepts that do not contradict each other, so far."""

    def __init__(self) -> None:
        self._owner: dict[str, Concept] = {}

    def add(self, concept: Concept) -> None:
        """One more; a repeat, a contradiction or a name that would become itself is refused."""
        for phrase in concept.phrases:
            key = same_name_key(phrase)
            if key in self._owner:
                _refuse_repeat(phrase, concept, self._owner[key])
            if key == same_name_key(concept.anchor):
                raise InputError(
                    f"{concept.where}: {quoted(phrase)} would become itself; choose another anchor."
                )
            self._owner[key] = concept


def _refuse_repeat(phrase: str, concept: Concept, earlier: Concept) -> None:
    place = _lower(earlier.where)
    if same_name_key(concept.anchor) != same_name_key(earlier.anchor):
        raise InputError(
            f"{concept.where}: {quoted(phrase)} should become {quoted(concept.anchor)}, but {place}"
            f" says {quoted(earlier.anchor)}; keep one of the two lines."
        )
    raise InputError(
        f"{concept.where}: {quoted(phrase)} is already in {place}; remove one of the two."
    )


def _lower(where: str) -> str:
    return where.replace("Line ", "line ")


def _notes(concepts: Sequence[Concept]) -> Iterator[str]:
    if cleaned := [name for concept in concepts for name in concept.cleaned]:
        yield invisible_note(cleaned)
    erased = {same_name_key(phrase): concept for concept in concepts for phrase in concept.phrases}
    index = WordIndex(phrase for concept in concepts for phrase in concept.phrases)
    for concept in concepts:
        anchor, other = quoted(concept.anchor), erased.get(same_name_key(concept.anchor))
        if other is not None:
            yield (
                f"{concept.where}: the anchor {anchor} is also erased, in {_lower(other.where)}; "
                f"{quoted(concept.target)} becomes what {anchor} was before."
            )
        elif found := index.match(concept.anchor):
            yield f"{concept.where}: the anchor {anchor} contains {quoted(found)}, which is erased."
