"""Names as people type them or keep them in files: one spelling, comments, tables, whole-word search, all bounded."""

from __future__ import annotations

import csv
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ..errors import FileError, InputError

# Limits of what people write. Recipes are written and read by the same ones: what can be asked for can be stored.
MAX_BYTES = 16 * 2**20
"""Largest list file read. A hundred thousand names are about 2 MB; more than this is not a list of names."""
MAX_NAMES = 500_000
"""Most names in one list: beyond, memory and time are no longer those of a list."""
MAX_NAME = 300
"""Longest name in characters. A text encoder takes 75 tokens, seldom more than this."""
MAX_CONCEPTS = 10_000
"""Most concepts in one list, ten times what has been measured; a longer list is one of kept names, misplaced."""
MAX_ALIASES = 100
"""Most aliases of one concept."""
MAX_LISTS = 100
"""Most lists that one set of kept names is made of."""
_SPACES = re.compile(r"\s+")
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*$")

# Control characters and lone surrogates are no text; the other two would be read as tokens that start or end a prompt.
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]|<\|(?:start|end)oftext\|>", re.IGNORECASE)


def fold(text: str) -> str:
    """One spelling: composed characters (NFC), single spaces, none at the ends."""
    if text.isascii():
        return " ".join(text.split())
    return _SPACES.sub(" ", unicodedata.normalize("NFC", text)).strip()


def same_name_key(text: str) -> str:
    """Equal for names that differ in case, spacing or composition alone."""
    folded = fold(text).casefold()
    return folded if folded.isascii() else unicodedata.normalize("NFC", folded)


def clean_name(text: str, where: str) -> str:
    """A folded name, or an error that says where it stands and what is wrong with it."""
    name = fold(text)
    if len(name) > MAX_NAME:
        raise InputError(f"{where}: a name of {len(name)} characters is too long; the limit is {MAX_NAME}.")
    refuse_control(name, where)
    return name


def refuse_control(text: str, where: str) -> None:
    """Raises for characters that are no text."""
    bad = _FORBIDDEN.search(text)
    if bad:
        raise InputError(f"{where}: it contains {bad.group()!a}, which is not text; remove it.")


def content_lines(text: str) -> Iterator[tuple[int, str]]:
    """Numbered lines (from 1) without comments and blank lines.

    A `#` opens a comment at the start of a line or after white space, so that `C#` stays a name.
    """
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for number, line in enumerate(lines, start=1):
        kept = _COMMENT.sub("", line).strip() if "#" in line else line.strip()
        if kept:
            yield number, kept


def read_text_file(path: Path) -> str:
    """A UTF-8 file, with or without byte order mark, not larger than a list can be."""
    try:
        if not path.is_file():
            raise FileError(f"There is no list file '{path}': check the path.")
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise FileError(
                f"'{path}' is {size / 2**20:.0f} MB, too large for a list of names: the limit is "
                f"{MAX_BYTES // 2**20} MB."
            )
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(f"'{path}' is not UTF-8 text (byte {error.start}): save it as UTF-8.") from error
    except (OSError, ValueError) as error:
        raise FileError(f"'{path}' cannot be read: {getattr(error, 'strerror', None) or error}.") from error


def table_rows(text: str, where: str) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """Header (lower case) and numbered rows of a csv; the delimiter is the one that the header uses."""
    body = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    lines = body.split("\n")
    skipped = 0
    while skipped < len(lines) and (not lines[skipped].strip() or lines[skipped].lstrip().startswith("#")):
        skipped += 1
    if skipped == len(lines):
        raise InputError(f"{where} is empty: its first line must name the columns.")
    delimiter = next((mark for mark in ",;\t" if mark in lines[skipped]), ",")
    reader = csv.reader((line + "\n" for line in lines[skipped:]), delimiter=delimiter)
    header = [fold(cell).casefold() for cell in _next_row(reader, where, skipped) or []]

    def rows() -> Iterator[tuple[int, list[str]]]:
        while True:
            number = skipped + reader.line_num + 1
            row = _next_row(reader, where, skipped)
            if row is None:
                return
            if any(cell.strip() for cell in row):
                yield number, row

    return header, rows()


def find_column(header: Sequence[str], wanted: Sequence[str], where: str) -> int:
    """Index of the first wanted column that the table has."""
    for name in wanted:
        if name.casefold() in header:
            return header.index(name.casefold())
    shown = ", ".join(header[:8]) or "none"
    expected = " or ".join(f"'{name}'" for name in wanted)
    raise InputError(f"{where} has no column {expected}; its columns are: {shown}.")


def cell(row: Sequence[str], column: int | None) -> str:
    """A cell, or nothing where the column or the end of a short row is missing."""
    return row[column] if column is not None and column < len(row) else ""


def _next_row(reader: Iterator[list[str]], where: str, skipped: int) -> list[str] | None:
    try:
        return next(reader, None)
    except csv.Error as error:
        line = skipped + getattr(reader, "line_num", 0)
        raise InputError(f"{where}, line {line}: the table cannot be read ({error}).") from error


_WORD = re.compile(r"\w+")


class WordIndex:
    """Finds phrases as runs of whole words, whatever their case, spacing or punctuation.

    `van gogh` is found in `Vincent van Gogh's room`, `art` is not found in `cartoon`. A phrase without a single letter
    or digit (an emoji) is found as it stands.
    """

    def __init__(self, phrases: Iterable[str]) -> None:
        self._by_words: dict[tuple[str, ...], str] = {}
        self._verbatim: dict[str, str] = {}
        for phrase in phrases:
            key = same_name_key(phrase)
            words = tuple(_WORD.findall(key))
            if words:
                self._by_words.setdefault(words, phrase)
            elif key:
                self._verbatim.setdefault(key, phrase)
        self._first_words = {words[0] for words in self._by_words}
        self._lengths = sorted({len(words) for words in self._by_words})

    def match(self, name: str) -> str | None:
        """The first phrase found in the name, or None."""
        key = same_name_key(name)
        words = _WORD.findall(key)
        for start, word in enumerate(words):
            if word not in self._first_words:
                continue
            for length in self._lengths:
                found = self._by_words.get(tuple(words[start : start + length]))
                if found is not None:
                    return found
        return next((phrase for mark, phrase in self._verbatim.items() if mark in key), None)
