"""Phrases that a language model writes about a concept: what it is asked, and what of its answer is
used. An answer may be anything.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import InputError
from .concept_list import Concept, parse_concepts
from .names import fold, same_name_key

QUESTIONS: dict[str, str] = {
    "without its name": (
        'List ten short ways to ask for the {kind} "{name}" in an image prompt without using the'
        " name. One per line, no explanations."
    ),
    "confused with it": (
        'List ten names that people confuse with the {kind} "{name}". One per line, no'
        " explanations."
    ),
    "other language": (
        'Write the {kind} "{name}" as it is called in ten other languages and alphabets. One per'
        " line, no explanations."
    ),
}
"""{what the phrases are: the question}."""
SEED = 0
"""Of the sampling; the same model writes the same phrases again."""
MOST = 10
"""Phrases of one answer that are tried."""
LONGEST = 120
"""Characters of a phrase."""
_THOUGHT = re.compile(r"<think>.*?(</think>|\Z)", re.DOTALL)
_NUMBERING = re.compile(r"(?:[-*•–—·]|\(?\d{1,3}[.):]|\(?[a-z]\))\s+|\d{1,3}[.)](?=\D)")
_EXPLANATION = re.compile(r"\s+[-–—]\s+.*|\s*\([^)]*\)?\s*$")
_QUOTES = " \t\"'`*_“”„‘’«»\u300c\u300d\u300e\u300f"
_MARKUP = re.compile(r"[<>{}\[\]\\#@]|embedding:", re.IGNORECASE)
_LETTERS = 0.7
"""Least share of letters and their marks among a phrase's characters other than spaces."""


@dataclass(frozen=True)
class Written:
    """What a model wrote about one concept."""

    phrases: dict[str, str]
    """{phrase: what it is}."""
    lines: int
    """Lines of its answers, usable or not."""


def questions(concept: Concept) -> dict[str, str]:
    """{what the phrases are: the question about this concept}."""
    return {
        label: question.format(kind=concept.kind, name=concept.target)
        for label, question in QUESTIONS.items()
    }


def read_answers(concept: Concept, answers: dict[str, str]) -> Written:
    """The usable phrases of a model's answers.

    Args:
        concept: What it was asked about.
        answers: {what the phrases are: the text}.
    """
    phrases: dict[str, str] = {}
    seen = {same_name_key(name) for name in (*concept.phrases, concept.anchor)}
    count = 0
    for label, answer in answers.items():
        lines = [line for line in _THOUGHT.sub("", answer).splitlines() if line.strip()]
        count += len(lines)
        for phrase in list(_new(lines, concept, seen))[:MOST]:
            phrases[phrase] = label
    return Written(phrases, count)


def _new(lines: list[str], concept: Concept, seen: set[str]) -> Iterator[str]:
    for line in lines:
        phrase = _phrase(line)
        key = same_name_key(phrase)
        if key not in seen and _is_usable(phrase) and not _names(phrase, concept):
            seen.add(key)
            yield phrase


def _phrase(line: str) -> str:
    """A line without its numbering, quotes and explanation."""
    text = _NUMBERING.sub("", fold(line).strip(_QUOTES), count=1)
    text = _EXPLANATION.sub("", text)
    return text.strip(_QUOTES).rstrip(".,;!\u3002\u3001").strip(_QUOTES)


def _is_usable(phrase: str) -> bool:
    """Whether it can be a phrase of a prompt, and an alias."""
    kinds = [unicodedata.category(letter)[0] for letter in phrase if letter != " "]
    letters = sum(kind in "LM" for kind in kinds)
    return (
        0 < len(phrase) <= LONGEST
        and not phrase.endswith((":", "\uff1a"))
        and phrase.isprintable()
        and not _MARKUP.search(phrase)
        and letters >= max(2, _LETTERS * len(kinds))
        and _can_be_alias(phrase)
    )


def _can_be_alias(phrase: str) -> bool:
    """Whether a concept line takes it as it is."""
    try:
        (concept,) = parse_concepts(f"a name | {phrase} -> another", "style")
    except InputError:
        return False
    return concept.aliases == (phrase,)


def _names(phrase: str, concept: Concept) -> bool:
    """Whether it contains the name or an alias as words."""
    text = same_name_key(phrase)
    return any(
        re.search(rf"(?<!\w){re.escape(same_name_key(name))}(?!\w)", text)
        for name in concept.phrases
    )
