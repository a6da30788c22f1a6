"""Names as people type them or keep them in files: one spelling, comments, tables, whole-word
search, all bounded.
"""

from __future__ import annotations

import csv
import re
import stat
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from ..errors import FileError, InputError, NotFoundError

# Limits of what people write. Recipes are written and read by the same ones: what can be asked for
# can be stored.
MAX_BYTES = 16 * 2**20
"""Largest list file read. A hundred thousand names are about 2 MB; more than this is not a list of
names.
"""
MAX_NAMES = 500_000
"""Most names in one list: beyond, memory and time are no longer those of a list."""
MAX_NAME = 300
"""Longest name in characters. A text encoder takes 75 tokens, seldom more than this."""
MAX_CONCEPTS = 10_000
"""Most concepts in one list, ten times what has been measured; a longer list is one of kept names,
misplaced.
"""
MAX_ALIASES = 100
"""Most aliases of one concept."""
MAX_LISTS = 100
"""Most lists that one set of kept names is made of."""
_LISTED = 5
_SPACES = re.compile(r"\s+")
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*$")

# Control characters and lone surrogates are no text; the other two would be read as tokens that
# start or end a prompt.
_NO_TEXT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_FORBIDDEN = re.compile(rf"{_NO_TEXT.pattern}|<\|(?:start|end)oftext\|>", re.IGNORECASE)

# What leaves no mark on the screen: Unicode's default-ignorable characters and the rest of its
# format characters, but for the few of those that are drawn. A name with one in it would be erased
# under a spelling that nobody types.
INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)
_JOINERS = "\u200c\u200d"
_JOINING_SCRIPTS = re.compile(
    # Arabic, Syriac, N'Ko, Mandaic, the scripts of India, Tibetan, Myanmar, Khmer, Mongolian, those
    # of Java and Bali
    "[\u0600-\u08ff\u0900-\u0dff\u0f00-\u109f\u1780-\u18af\u1900-\u1c4f\ua800-\ua8ff\ua980-\ua9ff\uaa60-\uaaff"
    "\uabc0-\uabff\ufb50-\ufdff\ufe70-\ufefc\U00010a00-\U00010fff\U00011000-\U00011fff\U0001e900-\U0001e95f]"
)
_MONGOLIAN = re.compile("[\u1820-\u18aa]")
_WITH_VARIANTS = re.compile(  # Han, Myanmar, Phags-pa
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af\u1000-\u109f\uaa60-\uaa7f\ua840-\ua877]"
)
_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")
_REGION_FLAG = "\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{3,7}\U000e007f"
_FLAG_OR_INVISIBLE = re.compile(f"{_REGION_FLAG}|{INVISIBLE.pattern}")
_VIRAMA = 9
"""Combining class of the marks that join two letters of an Indian script."""


def without_invisible(text: str) -> str:
    """The text without characters that cannot be seen, but for those that an emoji or a script is
    written with.
    """
    if text.isascii() or not INVISIBLE.search(text):
        return text
    kept: list[str] = []
    end = 0
    for found in _FLAG_OR_INVISIBLE.finditer(text):
        kept += [text[end : found.start()]] if found.start() > end else []
        end = found.end()
        last = kept[-1][-1] if kept else ""
        if len(found.group()) > 1 or _needed(found.group(), last, text[end : end + 1]):
            kept.append(found.group())
    return "".join([*kept, text[end:]])


def has_invisible(text: str) -> bool:
    """Whether `fold` would take characters away that cannot be seen."""
    composed = text if text.isascii() else unicodedata.normalize("NFC", text)
    return without_invisible(composed) != composed


def invisible_note(names: Sequence[str]) -> str:
    """The sentence about names that had such characters."""
    shown = ", ".join(quoted(name) for name in names[:_LISTED])
    more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    return (
        f"Invisible characters were removed from {shown}{more}: check that this is what you meant"
        " to write."
    )


def _needed(letter: str, last: str, after: str) -> bool:
    """Whether an invisible character changes what is seen, after the last one that was kept and
    before the next.
    """
    if letter in _JOINERS:
        return _joins(letter, last, after)
    if _SELECTORS.match(letter):
        return _takes_selector(last, after)
    if "\u180b" <= letter <= "\u180f":
        return bool(_MONGOLIAN.match(last) and (letter != "\u180e" or _MONGOLIAN.match(after)))
    return False


def _joins(joiner: str, last: str, after: str) -> bool:
    """A joiner between two emoji or two letters of a script that has joined forms; or after a
    virama, as a form.
    """
    if joiner == "\u200d" and _is_emoji(last) and _is_emoji(after):
        return True
    if not _JOINING_SCRIPTS.match(last):
        return False
    if joiner == "\u200d" and unicodedata.combining(last) == _VIRAMA:
        return True
    return bool(_JOINING_SCRIPTS.match(after)) and all(
        unicodedata.category(one)[0] in "LM" for one in (last, after)
    )


def _is_emoji(letter: str) -> bool:
    """Symbols, skin tones, the sign that asks for the coloured form, the end of a flag, and the
    two-way arrow.
    """
    if not letter or letter in "\ufe0f\u2194\U000e007f" or "\U0001f000" <= letter <= "\U0001faff":
        return bool(letter)
    return unicodedata.category(letter) == "So"


def _takes_selector(last: str, after: str) -> bool:
    """Symbols and Han characters have variants, letters have none; of ASCII, only what stands on a
    keycap.
    """
    if not last or last.isascii():
        return bool(last) and last in "0123456789#*" and after == "\u20e3"
    return (
        bool(_WITH_VARIANTS.match(last))
        or last == "\u2139"
        or unicodedata.category(last)[0] in "SP"
    )


def fold(text: str) -> str:
    """One spelling: composed characters (NFC), none that cannot be seen, single spaces, none at the
    ends.
    """
    if text.isascii():
        return " ".join(text.split())
    composed = unicodedata.normalize("NFC", text)
    visible = without_invisible(composed)
    # Without them other characters may compose, and other joiners stand where no script needs them.
    return fold(visible) if visible != composed else _SPACES.sub(" ", composed).strip()


def same_name_key(text: str) -> str:
    """Equal for names that differ in case, spacing, composition or invisible characters alone."""
    folded = fold(text).casefold()
    return folded if folded.isascii() else unicodedata.normalize("NFC", folded)


def quoted(name: str) -> str:
    """A name inside a sentence, as it is: every text that mentions a name does it through here, so
    that a redacted one is found again. Never `repr`, which spells quotes, backslashes and other
    alphabets differently."""
    return f"'{name}'"


def clean_name(text: str, where: str) -> str:
    """A folded name, or an error that says where it stands and what is wrong with it."""
    name = fold(text)
    if len(name) > MAX_NAME:
        raise InputError(
            f"{where}: a name of {len(name)} characters is too long; the limit is {MAX_NAME}."
        )
    refuse_control(name, where)
    return name


def refuse_control(text: str, where: str) -> None:
    """Raises for characters that are no text."""
    bad = _FORBIDDEN.search(text)
    if bad:
        raise InputError(f"{where}: it contains {bad.group()!a}, which is not text; remove it.")


def content_lines(text: str, comments: bool = True) -> Iterator[tuple[int, str]]:
    """Numbered lines (from 1) without comments and blank lines.

    A `#` opens a comment at the start of a line or after white space, so that `C#` stays a name.
    Without `comments` it is a character like any other.
    """
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for number, line in enumerate(lines, start=1):
        kept = _COMMENT.sub("", line).strip() if comments and "#" in line else line.strip()
        if kept:
            yield number, kept


STANDARD_INPUT = "-"
_PIPES = ("/dev/fd/", "/proc/self/fd/")


def list_label(path: Path) -> str:
    """What a list file is called in messages and recipes: one line of text, whatever its name on
    the disk is.
    """
    if str(path) in (STANDARD_INPUT, "/dev/stdin"):
        return "standard input"
    return "a pipe" if str(path).startswith(_PIPES) else plain_label(path.name)


def plain_label(label: str) -> str:
    """A label on one line, without anything that is not text: file names may hold all sorts."""
    return fold(_NO_TEXT.sub("?", label))[:MAX_NAME]


def list_suffix(path: Path, known: Sequence[str]) -> str:
    """The kind of list by its file's name, `.txt` where it has none; a file that is no list of
    names is refused.
    """
    suffix = path.suffix.lower() or ".txt"
    if suffix not in known:
        raise FileError(
            f"'{path}' is not a list that can be read here: save it as a text file with one name"
            f" per line (.txt), or as {' or '.join(one for one in known if one != '.txt')}."
        )
    return suffix


def read_text_file(path: Path) -> str:
    """UTF-8 text, with or without byte order mark, not longer than a list can be.

    From a file, a pipe such as `<(...)` gives, or, for `-`, standard input.
    """
    what = "Standard input" if str(path) == STANDARD_INPUT else f"'{path}'"
    try:
        if str(path) == STANDARD_INPUT:
            content = _read_bounded(sys.stdin.buffer, what)
        else:
            _refuse_no_file(path)
            with path.open("rb") as handle:
                content = _read_bounded(handle, what)
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(
            f"{what} is not UTF-8 text (byte {error.start}): save it as UTF-8."
        ) from error
    # AttributeError: a program without standard input
    except (OSError, ValueError, AttributeError) as error:
        raise FileError(
            f"{what} cannot be read: {getattr(error, 'strerror', None) or error}."
        ) from error


def _refuse_no_file(path: Path) -> None:
    """Only what can be read from start to end once: files, pipes, and devices such as a
    terminal.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(f"There is no list file '{path}': check the path.") from None
    if stat.S_ISDIR(mode):
        raise FileError(f"'{path}' is a folder, not a list file: give the file in it.")
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)):
        raise FileError(f"'{path}' is not a file that can be read: give a list file.")


def _read_bounded(handle: BinaryIO, what: str) -> bytes:
    """All of it. The size of a pipe is known only when it ends, so reading stops one byte after the
    limit.
    """
    content = handle.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise FileError(
            f"{what} is too large for a list of names: the limit is {MAX_BYTES // 2**20} MB."
        )
    return content


def table_rows(text: str, where: str) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """Header (lower case) and numbered rows of a csv; the delimiter is the one that the header
    uses.
    """
    body = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    lines = body.split("\n")
    skipped = 0
    while skipped < len(lines) and (
        not lines[skipped].strip() or lines[skipped].lstrip().startswith("#")
    ):
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


_WORD = re.compile(r"[^\W_]+")


def words_of(text: str) -> list[str]:
    """The words of a text, in the spelling in which names are compared."""
    return _WORD.findall(same_name_key(text))


class WordIndex:
    """Finds phrases as runs of whole words, whatever their case, spacing or punctuation.

    `van gogh` is found in `Vincent van Gogh's room`, `art` is not found in `cartoon`. A phrase
    without a single letter or digit (an emoji) is found as it stands.
    """

    def __init__(
        self, phrases: Iterable[str], split: Callable[[str], Sequence[str]] = words_of
    ) -> None:
        self._by_words: dict[tuple[str, ...], str] = {}
        self._verbatim: dict[str, str] = {}
        for phrase in phrases:
            if words := tuple(split(phrase)):
                self._by_words.setdefault(words, phrase)
            elif key := same_name_key(phrase):
                self._verbatim.setdefault(key, phrase)
        self._first_words = {words[0] for words in self._by_words}
        self._lengths = sorted({len(words) for words in self._by_words}, reverse=True)

    def match(self, name: str) -> str | None:
        """The first phrase found in the name, or None."""
        for _, _, phrase in self.runs(words_of(name)):
            return phrase
        key = same_name_key(name) if self._verbatim else ""
        return next((phrase for mark, phrase in self._verbatim.items() if mark in key), None)

    def runs(self, words: Sequence[str]) -> Iterator[tuple[int, int, str]]:
        """(first word, number of words, phrase) of all that are found, from the left, longest first
        at each place.
        """
        for start, word in enumerate(words):
            if word not in self._first_words:
                continue
            for length in self._lengths:
                found = self._by_words.get(tuple(words[start : start + length]))
                if found is not None and start + length <= len(words):
                    yield start, length, found
