"""What a file records about an erasure, in lines. Anyone can write a header, so they are marked as
recorded: only `verify` finds out whether they are true. No text of a file begins a line of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..certificate.verdicts import verdict_in_words
from ..provenance import Provenance
from ..recipe import Recipe

HEADING = "Recorded in the file, not verified:"
_LISTED = 12
_LINE_BREAK = re.compile(r"[\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")


def recorded_lines(provenance: Provenance) -> Iterator[str]:
    """The heading, and what the header records below it."""
    return map(_one_line, _recorded_lines(provenance))


def recipe_lines(recipe: Recipe) -> Iterator[str]:
    """A recipe in short."""
    return map(_one_line, _recipe_lines(recipe))


def _one_line(text: str) -> str:
    return _LINE_BREAK.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def _recorded_lines(provenance: Provenance) -> Iterator[str]:
    yield HEADING
    if provenance.recipe is not None:
        yield from (f"  {line}" for line in _recipe_lines(provenance.recipe))
    claims, problem = provenance.claims()
    if problem:
        yield f"  Its measurements cannot be read: {problem}"
    for claim in claims[:_LISTED]:
        left = "" if claim.left is None else f", {claim.left:.0%} remaining in new prompts"
        yield f"  Claim about {claim.name!r}: {verdict_in_words(claim.verdict)}{left}"
    if len(claims) > _LISTED:
        yield f"  ... and claims about {len(claims) - _LISTED} more"
    yield f"  Base: sha256 {provenance.base_hash or '(not stated)'}"


def _recipe_lines(recipe: Recipe) -> Iterator[str]:
    hidden = "" if recipe.has_names else " (written without names)"
    count = len(recipe.concepts)
    yield f"Concepts ({count:,}){hidden}:"
    for concept in recipe.concepts[:_LISTED]:
        names = " | ".join((concept.target, *concept.aliases))
        yield f"  {names} -> {concept.anchor or '(nothing)'}  [{concept.kind}]"
    if count > _LISTED:
        yield f"  ... and {count - _LISTED} more"
    lists = ", ".join(
        source.label + (f" ({len(source.names)} names)" if source.names else "")
        for source in recipe.retain
    )
    labels = {"preset_name": "preset", "method": "method", "layers": "layers"}
    settings = ", ".join(
        f"{label} {str(recipe.settings[name])[:40]}"
        for name, label in labels.items()
        if name in recipe.settings
    )
    if recipe.blocklists:
        yield f"Block lists: {', '.join(recipe.blocklists)}"
    yield f"Protected: {lists or 'no names'}"
    yield f"Settings: {settings or 'none stated'}; strength {recipe.strength:g}"
    for number, earlier in enumerate(recipe.history[:_LISTED], 1):
        names = ", ".join(concept.target for concept in earlier.concepts[:_LISTED])
        omitted = len(earlier.concepts) - _LISTED
        names += f" and {omitted} more" if omitted > 0 else ""
        base = earlier.base_hash or "(not stated)"
        yield f"Earlier recipe {number}: {names}; base: sha256 {base}"
    if len(recipe.history) > _LISTED:
        yield f"... and {len(recipe.history) - _LISTED} more recipes"
