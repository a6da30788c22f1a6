"""Ways to ask for an erased thing, from its name to a mere description: what the leak probe tries."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Literal

from .kinds import BARE, Template, kind_of
from .listing import fold
from .phrases import Concept
from .tokens import Prompt

Rung = Literal["name", "alias", "case", "surname", "possessive", "typo", "description"]


@dataclass(frozen=True)
class Variant:
    """One phrase that may still draw the concept."""

    rung: Rung
    phrase: str


@dataclass(frozen=True)
class LadderPrompt:
    """A variant inside a probe template, and the same template with the anchor."""

    variant: Variant
    template: Template
    prompt: Prompt
    anchor: Prompt


def variants(
    concept: Concept, description: str = "", same: Callable[[str], Hashable] | None = None
) -> tuple[Variant, ...]:
    """Phrases in order of the rungs, without repeats.

    `description`: the user's own words for the thing; without them the kind's patterns are used. `same`: phrases for
    which it gives equal values count as one; give the tokenizer's ids to try only what an encoder can tell apart.
    """
    key: Callable[[str], Hashable] = same or (lambda phrase: phrase)
    found: dict[Hashable, Variant] = {}
    for rung, phrase in _all_variants(concept, description):
        if phrase:
            found.setdefault(key(phrase), Variant(rung, phrase))
    return tuple(found.values())


def ladder(
    concept: Concept, description: str = "", same: Callable[[str], Hashable] | None = None, templates: int | None = None
) -> tuple[LadderPrompt, ...]:
    """Every variant alone and in the first probe templates of the concept's kind (all of them if None)."""
    chosen = (BARE, *kind_of(concept.kind).probe_templates[:templates])
    return tuple(
        LadderPrompt(variant, template, template.fill(variant.phrase), template.fill(concept.anchor))
        for variant in variants(concept, description, same)
        for template in chosen
    )


def _all_variants(concept: Concept, description: str) -> Iterator[tuple[Rung, str]]:
    name = concept.target
    yield "name", name
    for alias in concept.aliases:
        yield "alias", alias
    for spelled in (name.lower(), name.upper(), name.title()):
        yield "case", spelled
    words = name.split()
    if len(words) > 1:
        yield "surname", words[-1]
    yield "possessive", f"{name}'" if name.endswith("s") else f"{name}'s"
    for typo in typos(name):
        yield "typo", typo
    if fold(description):
        yield "description", fold(description)
    else:
        for pattern in kind_of(concept.kind).descriptions:
            yield "description", pattern.replace("{name}", name)


def typos(name: str) -> tuple[str, ...]:
    """Three slips of the hand in the middle of the longest word: two letters swapped, one dropped, one doubled.

    Words of fewer than four letters are left alone, as a slip in them makes another word.
    """
    words = name.split()
    longest = max(range(len(words)), key=lambda i: len(words[i]), default=None)
    if longest is None or len(words[longest]) < 4:
        return ()
    word = words[longest]
    middle = len(word) // 2
    swapped = word[: middle - 1] + word[middle] + word[middle - 1] + word[middle + 1 :]
    dropped = word[:middle] + word[middle + 1 :]
    doubled = word[:middle] + word[middle] + word[middle:]
    slips = (" ".join((*words[:longest], slip, *words[longest + 1 :])) for slip in (swapped, dropped, doubled))
    return tuple(slip for slip in slips if slip != name)
