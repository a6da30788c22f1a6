"""Names as people type them or store them in files: spelling, comments, tables, word search."""

from __future__ import annotations

import csv
import functools
import os
import re
import select
import stat
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ..errors import FileError, InputError, NotFoundError, Notice

# Limits of what people write. Recipes have the same ones, so that every job can be stored.
MAX_BYTES = 16 * 2**20  # largest list file; a hundred thousand names are about 2 MB
MAX_NAMES = 500_000  # most names in one list
MAX_NAME = 300  # longest name in characters: a text encoder takes 75 tokens, seldom more than this
MAX_CONCEPTS = 10_000  # most concepts in one list, ten times what has been measured
MAX_ALIASES = 100  # most aliases of one concept
MAX_LISTS = 100  # most lists in one set of kept names
_SHOWN_NAMES = 5
_REMEMBERED_KEYS = 2**16
_SPACES = re.compile(r"\s+")
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*$")
_WORD = re.compile(r"[^\W_]+")

# Control characters and lone surrogates are not text; a text encoder would read the other two as
# the start or the end of a prompt.
_NOT_TEXT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_FORBIDDEN = re.compile(rf"{_NOT_TEXT.pattern}|<\|(?:start|end)oftext\|>", re.IGNORECASE)

# Unicode's default-ignorable characters and its other format characters, except the few that are
# drawn. A name that contains one would be erased under a spelling that no prompt has.
INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)
_JOINERS = "\u200c\u200d"
_JOINING_SCRIPTS = re.compile(
    # Arabic, Syriac, N'Ko, Mandaic, the scripts of India, Tibetan, Myanmar, Khmer, Mongolian, those
    # of Java and Bali
    "[\u0600-\u08ff\u0900-\u0dff\u0f00-\u109f\u1780-\u18af\u1900-\u1c4f\ua800-\ua8ff"
    "\ua980-\ua9ff\uaa60-\uaaff"
    "\uabc0-\uabff\ufb50-\ufdff\ufe70-\ufefc\U00010a00-\U00010fff\U00011000-\U00011fff"
    "\U0001e900-\U0001e95f]"
)
_MONGOLIAN = re.compile("[\u1820-\u18aa]")
_WITH_VARIANTS = re.compile(  # Han, Myanmar, Phags-pa
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af\u1000-\u109f\uaa60-\uaa7f"
    "\ua840-\ua877]"
)
_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")
_REGION_FLAG = "\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{3,7}\U000e007f"
_FLAG_OR_INVISIBLE = re.compile(f"{_REGION_FLAG}|{INVISIBLE.pattern}")
_VIRAMA = 9
"""Combining class of the marks that join two letters of an Indian script."""


def without_invisible(text: str) -> str:
    """Removes characters that cannot be seen, except those that an emoji or a script needs."""
    if text.isascii() or not INVISIBLE.search(text):
        return text
    visible = ""
    end = 0
    for match in _FLAG_OR_INVISIBLE.finditer(text):
        visible += text[end : match.start()]
        end = match.end()
        if len(match.group()) > 1 or _needed(match.group(), visible[-1:], text[end : end + 1]):
            visible += match.group()
    return visible + text[end:]


def has_invisible(text: str) -> bool:
    """Whether `fold` would remove characters that cannot be seen."""
    if text.isascii():
        return False
    composed = unicodedata.normalize("NFC", text)
    return without_invisible(composed) != composed


def invisible_note(names: Sequence[str]) -> Notice:
    """The sentence about names that had such characters."""
    shown = ", ".join(quoted(name) for name in names[:_SHOWN_NAMES])
    more = f" and {len(names) - _SHOWN_NAMES:,} more" if len(names) > _SHOWN_NAMES else ""
    return Notice(
        f"Invisible characters were removed from {shown}{more}. Check that this is what you meant"
        " to write.",
        code="invisible_removed",
        names=[*names[:_SHOWN_NAMES], *(["…"] if more else [])],
    )


def _needed(letter: str, before: str, after: str) -> bool:
    """Whether an invisible character changes how its neighbors look."""
    if letter in _JOINERS:
        return _joins(letter, before, after)
    if _SELECTORS.match(letter):
        # Symbols and Han characters have variants, letters have none; in ASCII only keycaps do.
        if not before or before.isascii():
            return bool(before) and before in "0123456789#*" and after == "\u20e3"
        variants = _WITH_VARIANTS.match(before) or before == "\u2139"
        return bool(variants) or unicodedata.category(before)[0] in "SP"
    if "\u180b" <= letter <= "\u180f":
        return bool(_MONGOLIAN.match(before) and (letter != "\u180e" or _MONGOLIAN.match(after)))
    return False


def _joins(joiner: str, before: str, after: str) -> bool:
    """Between two emoji, between two letters of a script with joined forms, or after a virama."""
    if joiner == "\u200d" and _is_emoji(before) and _is_emoji(after):
        return True
    if not _JOINING_SCRIPTS.match(before):
        return False
    if joiner == "\u200d" and unicodedata.combining(before) == _VIRAMA:
        return True
    return bool(_JOINING_SCRIPTS.match(after)) and all(
        unicodedata.category(letter)[0] in "LM" for letter in (before, after)
    )


def _is_emoji(letter: str) -> bool:
    """Symbols, skin tones, the color selector, the end of a flag, and the two-way arrow."""
    if not letter:
        return False
    if letter in "\ufe0f\u2194\U000e007f" or "\U0001f000" <= letter <= "\U0001faff":
        return True
    return unicodedata.category(letter) == "So"


def fold(text: str) -> str:
    """One spelling: composed characters (NFC), none invisible, single spaces between words."""
    if text.isascii():
        return " ".join(text.split())
    composed = unicodedata.normalize("NFC", text)
    visible = without_invisible(composed)
    # What remains may compose further, and a joiner may have lost the neighbor that needed it.
    return fold(visible) if visible != composed else _SPACES.sub(" ", composed).strip()


@functools.lru_cache(_REMEMBERED_KEYS)  # one erasure compares every kept name many times
def same_name_key(text: str) -> str:
    """Equal for names that differ only in case, spacing, composition or invisible characters."""
    folded = fold(text).casefold()
    return folded if folded.isascii() else unicodedata.normalize("NFC", folded)


def quoted(name: str) -> str:
    """A name inside a sentence. Never `repr`, which escapes quotes, backslashes and alphabets."""
    return f"'{name}'"


def clean_name(text: str, where: str) -> str:
    """The folded name; raises where it is too long or not text."""
    name = fold(text)
    if len(name) > MAX_NAME:
        raise InputError(
            f"{where}: a name of {len(name)} characters is too long. Use at most {MAX_NAME}.",
            code="name_too_long",
            where=where,
            length=len(name),
            limit=MAX_NAME,
        )
    refuse_control(name, where)
    return name


def refuse_control(text: str, where: str) -> None:
    """Raises for characters that are not text."""
    if control := _FORBIDDEN.search(text):
        raise InputError(
            f"{where}: it contains {control.group()!a}, which is not text. Remove it.",
            code="not_text",
            where=where,
            mark=ascii(control.group()),
        )


def _split_lines(text: str) -> list[str]:
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")


def content_lines(text: str, comments: bool = True) -> Iterator[tuple[int, str]]:
    """Numbered lines (from 1) without comments and blank lines.

    A `#` opens a comment at the start of a line or after white space, so `C#` stays a name.
    Without `comments` it is an ordinary character.
    """
    for number, line in enumerate(_split_lines(text), start=1):
        content = _COMMENT.sub("", line) if comments and "#" in line else line
        if content.strip():
            yield number, content.strip()


STANDARD_INPUT = "-"
_PIPES = ("/dev/fd/", "/proc/self/fd/")


def list_label(path: Path) -> str:
    """What messages and recipes call a list file."""
    if str(path) in (STANDARD_INPUT, "/dev/stdin"):
        return "standard input"
    return "a pipe" if str(path).startswith(_PIPES) else plain_label(path.name)


def plain_label(label: str) -> str:
    """A label on one line, without control characters, which file names may contain."""
    return fold(_NOT_TEXT.sub("?", label))[:MAX_NAME]


def list_suffix(path: Path, suffixes: Sequence[str]) -> str:
    """The format of a list by its file name, `.txt` where it has no suffix; others are refused."""
    suffix = path.suffix.lower() or ".txt"
    if suffix not in suffixes:
        tables = " or ".join(suffix for suffix in suffixes if suffix != ".txt")
        raise FileError(
            f"'{path}' is not a list that can be read here. Save it as a text file with one name"
            f" per line (.txt), or as {tables}.",
            code="list_format",
            file=path.name,
        )
    return suffix


def read_text_file(path: Path) -> str:
    """UTF-8 text of a bounded file, of a pipe such as `<(...)`, or, for `-`, of standard input."""
    label = "Standard input" if str(path) == STANDARD_INPUT else f"'{path}'"
    try:
        if str(path) == STANDARD_INPUT:
            content = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            _refuse_unreadable(path)
            with open(path, "rb", opener=open_at_once) as handle:
                content = handle.read(MAX_BYTES + 1)  # the size of a pipe shows only at its end
        if len(content) > MAX_BYTES:
            raise FileError(
                f"{label} is too large for a list of names. Use at most {MAX_BYTES // 2**20} MB.",
                code="list_too_large",
                file=path.name,
                limit=MAX_BYTES // 2**20,
            )
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(
            f"{label} is not UTF-8 text (byte {error.start}). Save it as UTF-8.",
            code="list_not_utf8",
            file=path.name,
        ) from error
    # AttributeError: a program without standard input
    except (OSError, ValueError, AttributeError) as error:
        raise FileError(
            f"{label} cannot be read: {getattr(error, 'strerror', None) or error}.",
            code="list_unreadable",
            file=path.name,
        ) from error


_PATIENCE = 5.0
"""Seconds until a program has to write to a named pipe."""


def open_at_once(path: str, flags: int) -> int:
    """For `open`: a named pipe that no program begins to write to is empty, not a wait without
    end.
    """
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if os.name != "nt":
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            select.select([descriptor], [], [], _PATIENCE)
        os.set_blocking(descriptor, True)
    return descriptor


def _refuse_unreadable(path: Path) -> None:
    """Raises for anything but files, pipes, and devices such as a terminal."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(
            f"There is no list file '{path}'. Check the path.", code="list_missing", file=path.name
        ) from None
    if stat.S_ISDIR(mode):
        raise FileError(
            f"'{path}' is a folder, not a list file. Give the file in it.",
            code="list_unreadable",
            file=path.name,
        )
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)):
        raise FileError(
            f"'{path}' is not a file that can be read. Give a list file.",
            code="list_unreadable",
            file=path.name,
        )


def table_rows(text: str, where: str) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Header (lower case) and numbered rows of a csv; the header shows which delimiter it uses."""
    lines = _split_lines(text)
    skipped = 0
    while skipped < len(lines) and (
        not lines[skipped].strip() or lines[skipped].lstrip().startswith("#")
    ):
        skipped += 1
    if skipped == len(lines):
        raise InputError(
            f"{where} is empty. Name the columns in its first line.", code="table_empty", file=where
        )
    delimiter = next((mark for mark in ",;\t" if mark in lines[skipped]), ",")
    reader = csv.reader((line + "\n" for line in lines[skipped:]), delimiter=delimiter)
    rows: list[tuple[int, list[str]]] = []
    number = skipped + 1
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                rows.append((number, row))
            number = skipped + reader.line_num + 1
    except csv.Error as error:
        line = skipped + reader.line_num
        raise InputError(
            f"{where}, line {line}: the table cannot be read ({error}).",
            code="table_broken",
            where=f"{where}, line {line}",
        ) from error
    header = [fold(cell).casefold() for cell in rows[0][1]] if rows else []
    return header, rows[1:]


def find_column(header: Sequence[str], names: Sequence[str], where: str) -> int:
    """Index of the first of these columns that the table has.

    Args:
        header: Column names in lower case.
        names: Acceptable columns, the preferred one first.
        where: What messages call the table.
    """
    for name in names:
        if name.casefold() in header:
            return header.index(name.casefold())
    columns = ", ".join(header[:8]) or "none"
    expected = " or ".join(f"'{name}'" for name in names)
    raise InputError(
        f"{where} has no column {expected}. Use one of: {columns}.",
        code="no_column",
        file=where,
        expected=list(names),
        columns=columns,
    )


def cell(row: Sequence[str], column: int | None) -> str:
    """A cell; empty where the column or the end of a short row is missing."""
    return row[column] if column is not None and column < len(row) else ""


def words_of(text: str) -> list[str]:
    """The words of a text, in the spelling in which names are compared."""
    return _WORD.findall(same_name_key(text))


class WordIndex:
    """Finds phrases as runs of whole words, whatever their case, spacing or punctuation.

    `van gogh` is found in `Vincent van Gogh's room`, `art` is not found in `cartoon`. A phrase
    without a letter or digit (an emoji) is found as a substring.
    """

    def __init__(self, phrases: Iterable[str]) -> None:
        self._by_words: dict[tuple[str, ...], str] = {}
        self._verbatim: dict[str, str] = {}
        for phrase in phrases:
            if words := tuple(words_of(phrase)):
                self._by_words.setdefault(words, phrase)
            elif key := same_name_key(phrase):
                self._verbatim.setdefault(key, phrase)
        self._first_words = {words[0] for words in self._by_words}
        self._lengths = sorted({len(words) for words in self._by_words}, reverse=True)

    def match(self, name: str) -> str | None:
        """The first phrase found in the name, the longest where several begin there, or None."""
        words = words_of(name)
        for start, word in enumerate(words):
            for length in self._lengths if word in self._first_words else ():
                phrase = self._by_words.get(tuple(words[start : start + length]))
                if phrase is not None:
                    return phrase
        key = same_name_key(name) if self._verbatim else ""
        return next((phrase for mark, phrase in self._verbatim.items() if mark in key), None)
