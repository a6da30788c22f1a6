"""Invented names of the same shape as a real one: what a model should not know."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence

from .names import fold, words_of

_END = ""
_TRIES = 200


def invented_names(like: str, count: int, known: Sequence[str], seed: int = 0) -> tuple[str, ...]:
    """Names with as many words as `like`, about as long, spelled like the known ones.

    Letters follow pairs of letters as often as they do in the known names. Words in lower case,
    such as "the" and "van", stay. No word of a known name is invented again.

    Args:
        like: The name whose shape they get.
        count: How many.
        known: Names to learn the spelling from.
        seed: Another seed gives other names.
    """
    chance = random.Random(f"{seed} {fold(like)}")
    taken = {word for name in (*known, like) for word in words_of(name)}
    letters = _successors(sorted(taken))
    names: dict[str, None] = {}
    for _ in range(_TRIES * count):
        if len(names) == count:
            break
        words = [_word(word, letters, taken, chance) for word in like.split()]
        if _END not in words:
            names[" ".join(words)] = None
    return tuple(names)


def _successors(words: Sequence[str]) -> Mapping[str, list[str]]:
    """{two letters: the letters that follow them, as often as they do}; spaces begin a word."""
    letters: dict[str, list[str]] = defaultdict(list)
    for word in words:
        if word.isalpha():
            padded = f"  {word}"
            for index, letter in enumerate([*word, _END]):
                letters[padded[index : index + 2]].append(letter)
    return letters


def _word(
    like: str, letters: Mapping[str, list[str]], taken: set[str], chance: random.Random
) -> str:
    """One invented word, or nothing if this try gave none."""
    if like.islower() and len(like) <= 3:
        return like
    word = "  "
    while word[-2:] in letters and (letter := chance.choice(letters[word[-2:]])):
        word += letter
        if len(word) > 2 + len(like) + 1:
            return _END
    word = word[2:]
    plain = word.isascii() or not like.isascii()
    if abs(len(word) - len(like)) > 1 or word in taken or not plain:
        return _END
    return word if like.islower() else word.upper() if like.isupper() else word.title()
