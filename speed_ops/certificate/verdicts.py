"""Verdicts in the words that people read; here, so that a command line's help needs no torch."""

from __future__ import annotations

VERDICT_WORDS: dict[str, str] = {
    "erased": "erased",
    "weakened": "weakened",
    "stands": "still there",
    "unproven": "not tested",
}
"""Stored verdict -> the words that people read."""


def decimals(value: float, *marks: float) -> str:
    """Two digits, and more where two would not show on which side of a mark a value is."""
    for digits in (2, 3, 4):
        text = f"{value:.{digits}f}"
        if all(
            (float(text) > mark) - (float(text) < mark) == (value > mark) - (value < mark)
            for mark in marks
        ):
            break
    return text


def verdict_in_words(stored: object) -> str:
    """A stored verdict for people; anything else that a header may hold, as it is."""
    return VERDICT_WORDS.get(str(stored), str(stored))
