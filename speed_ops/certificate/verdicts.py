"""Verdicts in the words that people read; here, so that a command line's help needs no torch."""

from __future__ import annotations

VERDICT_WORDS: dict[str, str] = {
    "erased": "erased",
    "weakened": "weakened",
    "stands": "still there",
    "unproven": "not tested",
}
"""Stored verdict -> the words that people read."""


def verdict_in_words(stored: object) -> str:
    """A stored verdict for people; anything else that a header may hold, as it is."""
    return VERDICT_WORDS.get(str(stored), str(stored))
