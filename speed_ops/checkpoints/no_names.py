"""`--no-names`: an erasure with numbers instead of names, made before anything is written."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import unquote_plus

from ..certificate.certificate import Certificate
from ..erasure import Erasure
from ..recipe import Recipe
from ..text.names import same_name_key

_ESCAPE = re.compile(r"\\+u([0-9a-fA-F]{4})")
_SEPARATORS = re.compile(r"[\s_\-+.]+")


def without_names(erasure: Erasure) -> Erasure:
    """The erasure as it may be written: concepts and kept names are numbered, and warnings and
    notes that contain a name are left out.
    """
    recipe, certificate, report = erasure.recipe, erasure.certificate, erasure.text_report
    assert recipe is not None and certificate is not None and report is not None
    numbered = recipe.without_names()
    numbers: dict[str, str] = {}
    for entry, hidden in zip(recipe.retain, numbered.retain, strict=True):
        numbers |= dict(zip(entry.names or (), hidden.names or (), strict=True))

    def number(name: str) -> str:
        return numbers.setdefault(name, f"name {len(numbers) + 1}")

    mentions = mentions_name(recipe)
    return replace(
        erasure,
        recipe=numbered,
        concepts=(),
        certificate=_numbered(certificate, number, mentions),
        text_report=replace(
            report,
            dropped=tuple(map(number, report.dropped)),
            unusable=tuple(map(number, report.unusable)),
        ),
        notes=tuple(text for text in erasure.notes if not mentions(text)),
    )


def _numbered(
    certificate: Certificate, number: Callable[[str], str], mentions: Callable[[str], bool]
) -> Certificate:
    curve = certificate.curve
    if curve is not None:
        blocking = tuple((number(name), value) for name, value in curve.in_the_way)
        curve = replace(curve, in_the_way=blocking)
    drift = tuple(
        replace(group, worst=tuple((number(name), value) for name, value in group.worst))
        for group in certificate.drift
    )
    concepts = tuple(
        replace(result, name=f"concept {index}")
        for index, result in enumerate(certificate.concepts, 1)
    )
    return replace(
        certificate,
        concepts=concepts,
        drift=drift,
        curve=curve,
        warnings=tuple(text for text in certificate.warnings if not mentions(text)),
        other_inputs={
            name: _numbered(section, number, mentions)
            for name, section in certificate.other_inputs.items()
        },
    )


def mentions_name(recipe: Recipe) -> Callable[[str], bool]:
    """A test for names of the recipe in a text, in any case and in any of the common escapes."""
    keys = {key for name in recipe.names for key in (_plain(name), same_name_key(name)) if key}

    def mentions(text: str) -> bool:
        views = _views(text)
        return any(key in views for key in keys)

    return mentions


def _views(text: str) -> str:
    """The text as it is and unescaped, in one string to search."""
    unescaped = _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text)
    # Two escaped halves of a character outside the basic plane become one.
    unescaped = unescaped.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    views = (text, unescaped, html.unescape(text), unquote_plus(text))
    return "\n".join(form(view) for view in views for form in (same_name_key, _plain))


def _plain(text: str) -> str:
    """As file names often spell it: `Van Gogh` for `van_gogh`."""
    return _SEPARATORS.sub(" ", same_name_key(text))
