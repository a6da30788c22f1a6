"""Names that a file must not show: salted hashes in their place, and a last look at everything that
is written.
"""

from __future__ import annotations

import hashlib
import hmac
import html
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from ..errors import FileError, SettingsError
from ..text.names import INVISIBLE, WordIndex, quoted, same_name_key

MARK = "redacted:"
_HASH = re.compile(rf"{MARK}[0-9a-f]{{32}}")
_QUOTED = re.compile(r"(?<!\w)'([^']+)'(?!\w)")
CHOICES = frozenset({"settings", "kind", "verdict", "group", "where", "key"})
"""Fields of a certificate that hold our own words and the model's, which may look like names."""
SENTENCES = "warnings"
"""The field that holds sentences, with names in quotes."""


def is_hash(name: str) -> bool:
    """Whether this is not a name but stands for one already."""
    return _HASH.fullmatch(name) is not None


class Redactor:
    """Replaces names under one salt; the same name gives the same hash, whatever its case and
    spacing.
    """

    def __init__(self, salt: bytes | str) -> None:
        self._salt = salt.encode("utf-8", "surrogatepass") if isinstance(salt, str) else bytes(salt)
        if not self._salt:
            raise SettingsError(
                "The salt is empty: give some secret text, or names could be guessed from their"
                " hashes."
            )

    def __call__(self, name: str) -> str:
        """The hash that stands for `name`; the empty name and hashes stay as they are."""
        if not name or is_hash(name):
            return name
        folded = same_name_key(name).encode("utf-8", "surrogatepass")
        return MARK + hmac.new(self._salt, folded, hashlib.sha256).hexdigest()[:32]

    def listed(self, name: str, names: Iterable[str]) -> str:
        """A name of a list: hidden as a whole if it is one of `names` or contains one, as 'Van Gogh
        Museum' does.
        """
        return self(name) if _finder(names).found(name) else name

    def text(self, text: str, names: Iterable[str]) -> str:
        """A text that anybody may have written, with `names` replaced wherever they stand in it."""
        finder = _finder(names)
        hidden = finder.replace(text, self)
        return self(text) if any(finder.found(view) for view in _views(hidden)) else hidden

    def certificate(
        self, facts: Mapping[str, Any], names: Iterable[str], fixed: str = ""
    ) -> dict[str, Any]:
        """A certificate in plain values with `names` hidden: listed names as a whole, in sentences
        those in quotes.

        `fixed`: what our sentences say besides names. A name that is also one of our words is
        hidden in quotes only: a hash in the place of a known word would tell it.
        """
        finder = _finder(names)
        ours = finder.found(f"{MARK} {fixed}")

        def hidden(text: str, field: str) -> str:
            if field == SENTENCES:
                return self._sentence(text, finder, ours)
            return self(text) if finder.found(text) else text

        return dict(_mapped(dict(facts), hidden))

    def _sentence(self, text: str, finder: NameFinder, ours: set[str]) -> str:
        text = finder.replace(text, self, lambda name, before, after: before == after == "'")
        text = _QUOTED.sub(
            lambda piece: quoted(self(piece[1])) if finder.found(piece[1]) else piece[0], text
        )
        return finder.replace(text, self, lambda name, before, after: name not in ours)


def blanked(facts: Mapping[str, Any]) -> dict[str, Any]:
    """A certificate without any name or sentence: our own words in it, and its numbers."""
    return dict(_mapped(dict(facts), lambda text, field: ""))


def refuse_leaks(content: str, names: Iterable[str], what: str, fixed: str = "") -> None:
    """Raises if `content`, which is about to be written, shows one of `names`, however it is
    escaped.

    `fixed`: our own text in it. A name that stands there, too (somebody erases 'style'), tells
    nothing.
    """
    finder = _finder(names)
    leaks: set[str] = set()
    for view in _views(content):
        leaks |= finder.found(view)
    if leaks and (
        leaks := leaks.difference(*(finder.found(view) for view in _views(f"{MARK} {fixed}")))
    ):
        count = "one of the names" if len(leaks) == 1 else f"{len(leaks):,} of the names"
        raise FileError(f"{what} would still show {count} that it is to hide: nothing was written.")


def _mapped(value: Any, change: Callable[[str, str], str], field: str = "") -> Any:
    """A JSON value with every text changed but for our own words; `change` is told the field that a
    text stands in.
    """
    if field in CHOICES:
        return value
    if isinstance(value, str):
        return change(value, field)
    if isinstance(value, dict):
        return {key: _mapped(item, change, str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_mapped(item, change, field) for item in value]
    return value


_ESCAPE = re.compile(
    r"\\(?:u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|[uU]([0-9a-fA-F]{8}|[0-9a-fA-F]{4})"
    r"|x([0-9a-fA-F]{2})|([\\/'\"]))"
)
_MOST_VIEWS = 6


def _views(content: str) -> Iterator[str]:
    """A text as it stands, and with its escapes (HTML, JSON, Python) undone, one layer after the
    other.
    """
    yield content
    for _ in range(_MOST_VIEWS):
        plain = html.unescape(_ESCAPE.sub(_unescaped, content))
        if plain == content:
            return
        content = plain
        yield content


def _unescaped(found: re.Match[str]) -> str:
    high, low, code, byte, mark = found.groups()
    if high:
        return (bytes.fromhex(high) + bytes.fromhex(low)).decode("utf-16-be")
    if mark:
        return mark
    number = int(code or byte, 16)
    return chr(number) if number <= 0x10FFFF else found[0]


_SHORT = 3
"""A name with fewer letters and digits than this (`C++`, `Q`, an emoji) is looked for with all its
signs.
"""
_SPACELESS = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    r"\U00020000-\U000323af"
)
"""Scripts that are written without spaces: every character may begin or end a name."""
_WORD = re.compile(rf"[{_SPACELESS}]|[^\W_{_SPACELESS}]+")
_WORD_OR_SIGN = re.compile(rf"{_WORD.pattern}|\S")


class NameFinder:
    """Finds names anywhere in a text that is to hide them: as whole words, whatever their case,
    spacing, punctuation or invisible characters. The time goes with the length of the text, not
    with the number of names."""

    def __init__(self, names: Iterable[str]) -> None:
        self._plain = {
            name: text for name in names if not is_hash(name) and (text := _plain(name).strip())
        }
        long = {name for name, text in self._plain.items() if _is_long(text)}
        short = self._plain.keys() - long
        self._parts = [
            (self._index(chosen, cut), cut)
            for chosen, cut in ((long, _WORD), (short, _WORD_OR_SIGN))
            if chosen
        ]

    def _index(self, names: Iterable[str], cut: re.Pattern[str]) -> WordIndex:
        return WordIndex(sorted(names), lambda name: _pieces(self._plain[name], cut))

    def found(self, text: str) -> set[str]:
        """The names that the text shows."""
        plain = _plain(text)
        return {
            name for index, cut in self._parts for _, _, name in index.runs(_pieces(plain, cut))
        }

    def replace(
        self,
        text: str,
        by: Callable[[str], str],
        where: Callable[[str, str, str], bool] = lambda name, before, after: True,
    ) -> str:
        """The text with what was found replaced, the longest first; `where(name, the character
        before, and after)`.
        """
        plain = _plain(text)
        done, end = [], 0
        for first, last, name in sorted(
            self._places(plain), key=lambda place: (place[0], -place[1])
        ):
            if first < end:
                continue
            head, tail = self._marks(name)
            begin = first - len(head) if plain[end:first].endswith(head) else first
            last += len(tail) if plain.startswith(tail, last) else 0
            if where(name, plain[max(begin - 1, 0) : begin], plain[last : last + 1]):
                done += [plain[end:begin], by(name)]
                end = last
        return "".join([*done, plain[end:]]) if done else text

    def _places(self, text: str) -> Iterator[tuple[int, int, str]]:
        """(start, end, name) of all that is found."""
        for index, cut in self._parts:
            spans = [
                place.span()
                for place in cut.finditer(text)
                for _ in cut.findall(place[0].casefold())
            ]
            for start, count, name in index.runs(_pieces(text, cut)):
                yield spans[start][0], spans[start + count - 1][1], name

    def _marks(self, name: str) -> tuple[str, str]:
        """Signs of the name's own before its first word and after its last, such as quotes."""
        text = self._plain[name]
        cut = _WORD if _is_long(text) else _WORD_OR_SIGN
        spans = [place.span() for place in cut.finditer(text)]
        return text[: spans[0][0]], text[spans[-1][1] :]


def _is_long(text: str) -> bool:
    words = _pieces(text, _WORD)
    return sum(map(len, words)) >= _SHORT or any(
        re.match(f"[{_SPACELESS}]", word) for word in words
    )


@lru_cache(maxsize=4)
def _finder_of(names: tuple[str, ...]) -> NameFinder:
    return NameFinder(names)


def _finder(names: Iterable[str]) -> NameFinder:
    return _finder_of(names if isinstance(names, tuple) else tuple(names))


def _plain(text: str) -> str:
    """Composed, and without what cannot be seen; case and spaces stay."""
    return text if text.isascii() else unicodedata.normalize("NFC", INVISIBLE.sub("", text))


def _pieces(text: str, cut: re.Pattern[str]) -> list[str]:
    """Words, or words and signs, in lower case, which may cut a word once more: the Turkish dotted
    I.
    """
    words = cut.findall(text)
    return (
        words
        if text.isascii() and text.islower()
        else [part for w in words for part in cut.findall(w.casefold())]
    )
