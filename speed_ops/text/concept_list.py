"""Concepts as a user writes them: one per line, `name | alias -> anchor || kind || strength`."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from ..errors import InputError, Notice, SpeedError, notice_of, suggestion
from .kinds import KINDS, kind_of
from .leco import read_leco
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

_ARROW = re.compile(rf"-{INVISIBLE.pattern}*>|\u2192")
# hyphens and dashes, minus signs, equals signs, tildes; some as wide as Chinese characters
_SHAFTS = r"-\u2010-\u2015\u2212\u2043\u02d7\ufe58\ufe63\uff0d=\uff1d~\uff5e"
_DRAWN_ARROW = re.compile(rf"<?[{_SHAFTS}]+\s*[>\uff1e]+")
"""What people type for an arrow: `->` is one; `=>`, `-->`, `—>` and `- >` are not."""
_ARROW_BLOCKS = (
    (0x2190, 0x21FF),
    (0x2794, 0x27FF),
    (0x2900, 0x297F),
    (0x2B00, 0x2BFF),
    (0x1F800, 0x1F8FF),
)
_OTHER_ARROWS = "".join(
    chr(code)
    for first, last in _ARROW_BLOCKS
    for code in range(first, last + 1)
    if "RIGHTWARDS" in unicodedata.name(chr(code), "") and code != 0x2192
)
_OTHER_ARROW = re.compile(rf"(?<=\S)(?<!\u200d)\s*([{_OTHER_ARROWS}\uffeb])")
"""Arrows to the right after a name, except one that ends an emoji (a runner to the right)."""
_FILE_NAME = re.compile(
    r"@(?:.+\.(?:txt|csv|tsv|json|xlsx?|ods|docx?|odt|rtf|md|ya?ml|toml|xml|html?|pdf|list|lst)"
    r"|[.~]{0,2}[/\\].*)",
    re.IGNORECASE,
)
KIND_MARK = "||"
"""Precedes the kind or the strength of one line."""
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)")
MIN_CONCEPT_STRENGTH, MAX_CONCEPT_STRENGTH = 0.05, 2.0
TARGET_COLUMNS = ("target", "concept", "name")
LIST_SUFFIXES = (".txt", ".csv", ".tsv", ".toml")


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
    """File or list that has the line; empty for typed text."""
    cleaned: tuple[str, ...] = field(default=(), compare=False)
    """Names of the concept from which invisible characters were removed."""
    strength: float = 1.0
    """How much of the way to its anchor it goes."""

    @property
    def phrases(self) -> tuple[str, ...]:
        """The target and its aliases."""
        return (self.target, *self.aliases)

    @property
    def where(self) -> str:
        """Where to look, for messages."""
        return _where(self.source, self.line)

    def as_line(self, with_kind: bool = False) -> str:
        """The line that parses to this concept; `with_kind`: whatever the kind of the list."""
        line = f"{' | '.join(self.phrases)} -> {self.anchor}".rstrip()
        line = f"{line} {KIND_MARK} {self.kind}" if with_kind else line
        return line if self.strength == 1 else f"{line} {KIND_MARK} {self.strength:g}"


class ConceptList(tuple[Concept, ...]):
    """Concepts that do not contradict each other; made by parsing or by adding lists."""

    merged: tuple[Notice, ...]
    """One for each concept that was already in the list."""

    def __new__(cls, concepts: Iterable[Concept] = ()) -> ConceptList:
        """Refuses too many concepts and contradictions. A repeat counts once; its other names
        become aliases of the first.
        """
        given = list(concepts)
        if len(given) > MAX_CONCEPTS:
            raise InputError(
                f"There are {len(given):,} concepts. Erase at most {MAX_CONCEPTS:,} in one list.",
                code="too_many_concepts",
                count=len(given),
                limit=MAX_CONCEPTS,
            )
        owners: dict[str, Concept] = {}
        phrases: dict[int, tuple[Concept, list[str]]] = {}
        merged: list[Notice] = []
        for concept in given:
            owner, fresh = _claim_names(concept, owners)
            if owner is not None:
                merged.append(_repeat_note(concept, owner))
            phrases.setdefault(id(owner or concept), (concept, []))[1].extend(fresh)
        self = super().__new__(
            cls,
            (
                concept
                if tuple(names) == concept.phrases
                else replace(concept, aliases=tuple(names[1:]))
                for concept, names in phrases.values()
            ),
        )
        self.merged = (*getattr(concepts, "merged", ()), *merged)
        return self

    def __add__(self, other: tuple[Concept, ...]) -> ConceptList:  # type: ignore[override]
        """Both lists, checked against each other."""
        both = ConceptList([*self, *other])
        both.merged = (*self.merged, *getattr(other, "merged", ()), *both.merged)
        return both

    def as_text(self) -> str:
        """The list as a user would type it, with kinds where there are several."""
        mixed = len({concept.kind for concept in self}) > 1
        return "\n".join(concept.as_line(mixed) for concept in self)

    @property
    def notes(self) -> tuple[Notice, ...]:
        """What is allowed but worth knowing."""
        notes = list(self.merged)
        if cleaned := [name for concept in self for name in concept.cleaned]:
            notes.append(invisible_note(cleaned))
        erased = {same_name_key(phrase): concept for concept in self for phrase in concept.phrases}
        index = WordIndex(phrase for concept in self for phrase in concept.phrases)
        for concept in self:
            anchor, where = quoted(concept.anchor), concept.where
            facts = {"where": where, "replacement": concept.anchor}
            if owner := erased.get(same_name_key(concept.anchor)):
                other = _lower(owner.where)
                notes.append(
                    Notice(
                        f"{where}: the replacement {anchor} is also erased, in {other};"
                        f" {quoted(concept.target)} becomes what {anchor} was before.",
                        code="replacement_erased",
                        name=concept.target,
                        owner=other,
                        **facts,
                    )
                )
            elif phrase := index.match(concept.anchor):
                notes.append(
                    Notice(
                        f"{where}: the replacement {anchor} contains {quoted(phrase)}, which is"
                        " erased.",
                        code="replacement_contains",
                        name=phrase,
                        **facts,
                    )
                )
        return tuple(notes)


def parse_concepts(text: str, kind: str, source: str = "", *, comments: bool = True) -> ConceptList:
    """Parses typed text: `target`, `target -> anchor`, `target | alias -> anchor`; `target ->`
    leaves the name out.

    `|| style` at the end of a line sets the kind of that line, `|| 0.7` its strength. Commas,
    parentheses and braces are part of a name.

    Args:
        text: One concept per line.
        kind: Kind of the lines that set none.
        source: File or list of the text, for messages.
        comments: Whether `#` at the start of a line or after a space opens a comment.
    """
    kind_of(kind)
    return ConceptList(
        _parse_line(line, kind, number, source) for number, line in content_lines(text, comments)
    )


class ReadLine(NamedTuple):
    """One line of a list as it was understood."""

    line: int
    concept: Concept | None
    problem: Notice | None
    """Why a run would refuse it; None where it would not."""
    note: Notice | None = None
    """What a run would do with it that its writer may not expect."""


def read_lines(text: str, kind: str) -> list[ReadLine]:
    """As `parse_concepts`, for an editor: every line is read, whatever is wrong with others."""
    lines: list[ReadLine] = []
    owners: dict[str, Concept] = {}
    for number, line in content_lines(text):
        concept = None
        problem = note = None
        try:
            concept = _parse_line(line, kind, number, "")
            owner, _ = _claim_names(concept, owners)
            note = None if owner is None else _repeat_note(concept, owner)
        except SpeedError as error:
            problem = notice_of(error)
        lines.append(ReadLine(number, concept, problem, note))
    return lines


def _parse_line(line: str, kind: str, number: int, source: str) -> Concept:
    where = _where(source, number)
    line, line_kind, strength = _split_marks(line, where)
    _refuse_look_alikes(fold(line), where)
    names, *anchors = _ARROW.split(line)
    if len(anchors) > 1:
        raise InputError(
            f"{where}: there is more than one arrow. Write one concept per line, as 'name ->"
            " replacement'.",
            code="several_arrows",
            where=where,
        )
    anchor = anchors[0] if anchors else None
    concept = _concept(names.split("|"), anchor, line_kind or kind, number, source)
    if "|" in concept.anchor:
        raise InputError(
            f"{where}: there is a '|' after the arrow. Put aliases before the arrow.",
            code="bar_after_arrow",
            where=where,
        )
    return replace(concept, strength=strength)


def _concept(
    names: Sequence[str], anchor_text: str | None, kind: str, number: int, source: str
) -> Concept:
    """The concept of a line: target and aliases, and the anchor or, for None, the kind's."""
    where = _where(source, number)
    target, *aliases = [clean_name(name, where) for name in names]
    if not target:
        raise InputError(
            f"{where}: there is no name to erase. Write 'name -> replacement'.",
            code="no_name",
            where=where,
        )
    if not all(aliases):
        raise InputError(
            f"{where}: an alias is empty. Remove the extra '|'.", code="empty_alias", where=where
        )
    for name in (target, *aliases):
        if "|" in name or _ARROW.search(name):
            raise InputError(
                f"{where}: {quoted(name)} contains '|' or an arrow, which cannot be part of a"
                " name. Remove it.",
                code="mark_in_name",
                where=where,
                name=name,
            )
    anchor = kind_of(kind).anchor if anchor_text is None else clean_name(anchor_text, where)
    texts = [text for text in (*names, anchor_text or "") if has_invisible(text)]
    cleaned = tuple(name for name in map(fold, texts) if name)
    return Concept(target, anchor, kind, tuple(aliases), number, source, cleaned)


def _split_marks(line: str, where: str) -> tuple[str, str, float]:
    """The line without what is set at its end: its kind, empty where it sets none, and strength."""
    names, mark, last = line.rpartition(KIND_MARK)
    if mark and _NUMBER.fullmatch(fold(last)):
        return *_split_kind(names, where), concept_strength(fold(last), where)
    return *_split_kind(line, where), 1.0


def concept_strength(text: str, where: str) -> float:
    """The strength of one concept; refuses one that is out of range."""
    value = float(text) if _NUMBER.fullmatch(text) else 0.0
    if not MIN_CONCEPT_STRENGTH <= value <= MAX_CONCEPT_STRENGTH:
        raise InputError(
            f"{where}: the strength is {quoted(text[:20])}. Use a number from"
            f" {MIN_CONCEPT_STRENGTH:g} to {MAX_CONCEPT_STRENGTH:g}.",
            code="bad_strength",
            where=where,
            value=text[:20],
            low=MIN_CONCEPT_STRENGTH,
            high=MAX_CONCEPT_STRENGTH,
        )
    return value


def _split_kind(line: str, where: str) -> tuple[str, str]:
    """The line without the kind at its end, and that kind; empty where it sets none."""
    names, mark, kind_text = line.rpartition(KIND_MARK)
    if not mark:
        return line, ""
    kind = fold(kind_text).casefold()
    if kind not in KINDS:
        problem = f"there is no type {quoted(kind)}{suggestion(kind, KINDS)}"
        raise InputError(
            f"{where}: {problem if kind else 'the type is missing'}. After '{KIND_MARK}', write one"
            f" of {', '.join(KINDS)}. For an alias, use a single '|'.",
            code="unknown_type" if kind else "missing_type",
            where=where,
            type=kind,
            types=list(KINDS),
        )
    return names, kind


def parse_concept_table(text: str, kind: str, source: str = "") -> ConceptList:
    """Parses csv: a column `target`, `concept` or `name`, and optionally `anchor`, `aliases` (split
    at `|`), `kind` and `strength`.

    Args:
        text: The table, with a header.
        kind: Kind of the rows that set none. A row without an anchor has that of its kind.
        source: File or list of the text, for messages.
    """
    label = source or "The table"
    header, rows = table_rows(text, label)
    target_column = find_column(header, TARGET_COLUMNS, label)
    anchor_column, alias_column, kind_column, strength_column = (
        header.index(name) if name in header else None
        for name in ("anchor", "aliases", "kind", "strength")
    )
    concepts: list[Concept] = []
    for number, row in rows:
        names = [cell(row, target_column), *filter(str.strip, cell(row, alias_column).split("|"))]
        for name in names:
            _refuse_look_alikes(fold(name), _where(source, number))
        anchor = cell(row, anchor_column)
        row_kind = cell(row, kind_column).strip().casefold() or kind
        concept = _concept(names, anchor if fold(anchor) else None, row_kind, number, source)
        if strength := fold(cell(row, strength_column)):
            where = _where(source, number)
            concept = replace(concept, strength=concept_strength(strength, where))
        concepts.append(concept)
    return ConceptList(concepts)


def read_concepts(path: str | Path, kind: str) -> ConceptList:
    """Reads a list: `.csv` and `.tsv` are tables, `.toml` is for LECO, others have a concept per
    line; `-` is stdin.
    """
    path = Path(path)
    parsers = {".txt": parse_concepts, ".toml": parse_leco}
    parse = parsers.get(list_suffix(path, LIST_SUFFIXES), parse_concept_table)
    return parse(read_text_file(path), kind, list_label(path))


def parse_leco(text: str, kind: str, source: str = "") -> ConceptList:
    """Parses a LECO prompt file.

    Args:
        text: TOML.
        kind: Kind of the concepts.
        source: File of the text, for messages.
    """
    concepts = []
    for number, names, anchor in read_leco(text, source or "The file"):
        for name in names:
            _refuse_look_alikes(fold(name), _where(source, number))
        concepts.append(_concept(names, anchor, kind, number, source))
    return ConceptList(concepts)


def _refuse_look_alikes(line: str, where: str) -> None:
    """Raises for what was meant as an arrow or as a file and would be read as part of a name."""
    refuse_control(line, where)
    if _FILE_NAME.fullmatch(line):
        raise InputError(
            f"{where}: {quoted(line)} looks like a file. Give it as a list file, not as a name.",
            advice="concept-file",
            code="looks_like_file",
            where=where,
            name=line,
        )
    arrows = [match.group() for match in _DRAWN_ARROW.finditer(line) if match.group() != "->"]
    arrows += [match.group(1) for match in _OTHER_ARROW.finditer(line)]
    if arrows:
        raise InputError(
            f"{where}: {quoted(arrows[0])} is not an arrow here. Write '->', as in 'name ->"
            " replacement'.",
            code="not_an_arrow",
            where=where,
            arrow=arrows[0],
        )


def _where(source: str, line: int) -> str:
    return f"{source}, line {line}" if source else f"Line {line}"


def _claim_names(
    concept: Concept, owners: dict[str, Concept]
) -> tuple[Concept | None, tuple[str, ...]]:
    """Adds names to `owners`; refuses contradictions and a name that would become itself. Returns
    the earlier concept that has one of the names, and the names that are new.
    """
    where, anchor_key = concept.where, same_name_key(concept.anchor)
    if len(concept.aliases) > MAX_ALIASES:
        raise InputError(
            f"{where}: {quoted(concept.target)} has {len(concept.aliases)} aliases. Use at most"
            f" {MAX_ALIASES}.",
            code="too_many_aliases",
            where=where,
            name=concept.target,
            count=len(concept.aliases),
            limit=MAX_ALIASES,
        )
    keys: dict[str, str] = {}
    for phrase in concept.phrases:
        keys.setdefault(same_name_key(phrase), phrase)
    earlier = next((owners[key] for key in keys if key in owners), None)
    fresh = tuple(phrase for key, phrase in keys.items() if key not in owners)
    for key, phrase in keys.items():
        if owner := owners.get(key):
            owner_where = _lower(owner.where)
            if anchor_key != same_name_key(owner.anchor):
                raise InputError(
                    f"{where}: {quoted(phrase)} should become {quoted(concept.anchor)}, but"
                    f" {owner_where} has {quoted(owner.anchor)}. Keep one of the two lines.",
                    code="two_replacements",
                    where=where,
                    name=phrase,
                    replacement=concept.anchor,
                    owner=owner_where,
                    other=owner.anchor,
                )
        if key == anchor_key:
            raise InputError(
                f"{where}: {quoted(phrase)} would become itself. Choose another replacement.",
                code="becomes_itself",
                where=where,
                name=phrase,
            )
        owners.setdefault(key, earlier or concept)
    return earlier, fresh


def _repeat_note(concept: Concept, owner: Concept) -> Notice:
    where, earlier = concept.where, _lower(owner.where)
    return Notice(
        f"{where}: {quoted(concept.target)} is already in {earlier}; it counts once.",
        code="repeated",
        where=where,
        name=concept.target,
        owner=earlier,
    )


def _lower(where: str) -> str:
    return where.replace("Line ", "line ")
