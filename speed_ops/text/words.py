"""Whole-word search for many phrases in many names, in time linear in both."""

from __future__ import annotations

import re
from collections.abc import Iterable

from .listing import same_name_key

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
