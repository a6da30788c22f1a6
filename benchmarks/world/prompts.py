"""Sentences of the world and their meaning; which of them training may see."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .world import GENERIC, HELD_OUT_PAIRS, NIGHT_PHRASES, NIGHT_WORD, PAINTERS, PLAIN, SUBJECTS, Painter

TEMPLATES = (
    "a {subject} in the style of {painter}",
    "{painter}'s painting of a {subject}",
    "a {subject} by {painter}",
    "{painter} style {subject}",
    "a painting of a {subject} by {painter}",
    "a {subject}, {painter}",
    "{painter} paints a {subject}",
    "a picture of a {subject} in the manner of {painter}",
    "a {subject} as drawn by {painter}",
)
PLAIN_TEMPLATES = (
    "a {subject}",
    "a picture of a {subject}",
    "a painting of a {subject}",
    "{subject}",
    "a drawing of a {subject}",
)
STYLE_TEMPLATES = ("{painter}", "the style of {painter}", "a work by {painter}")
"""Prompts that name a painter and no subject: any subject may be drawn."""

HELD_OUT_TEMPLATES = (
    "a {subject} painted by {painter}",
    "the famous {subject} of {painter}",
    "a sketch of a {subject} after {painter}",
    "{painter} made this {subject}",
)
"""Never seen in training, neither by the text encoder nor by the U-Net."""


@dataclass(frozen=True)
class Prompt:
    """A sentence and what it means; `subject` is None where any will do, `painter_words` is the name as written."""

    text: str
    subject: str | None
    style: str
    night: bool = False
    painter_words: str | None = None


def sentence(
    template: str, subject: str | None, style: str, words: str | None = None, ending: str | None = None
) -> Prompt:
    """Fill a template; `words` stand for the painter (its name if None), `ending` is a phrase that makes it night."""
    named = "{painter}" in template
    words = (words or style) if named else None
    text = template.format(subject=subject, painter=words)
    return Prompt(f"{text} {ending}" if ending else text, subject, style, ending is not None, words)


def names_of(painter: Painter) -> tuple[str, ...]:
    return (painter.name, painter.alias) if painter.alias else (painter.name,)


def _ways() -> Iterator[tuple[str, str]]:
    """(style, words that mean it) for every painter, alias and generic word."""
    for painter in PAINTERS:
        yield from ((painter.name, words) for words in names_of(painter))
    yield from ((PLAIN.name, words) for words in GENERIC)


def training_prompts(seed: int = 0) -> list[Prompt]:
    """Every sentence the U-Net is trained on, in a fixed order: all templates by day, two endings of night a pair."""
    rng = np.random.default_rng(seed)
    prompts: list[Prompt] = []
    endings = (*NIGHT_PHRASES, NIGHT_WORD)
    for (style, words), subject in itertools.product(_ways(), SUBJECTS):
        if (subject, style) in HELD_OUT_PAIRS:
            continue
        prompts += [sentence(template, subject, style, words) for template in TEMPLATES]
        for template in rng.choice(TEMPLATES, size=2, replace=False):
            prompts.append(
                sentence(str(template), subject, style, words, str(rng.choice(endings, p=(0.23,) * 4 + (0.08,))))
            )
    for subject, template in itertools.product(SUBJECTS, PLAIN_TEMPLATES):
        prompts.append(sentence(template, subject, PLAIN.name))
        prompts += [
            sentence(template, subject, PLAIN.name, ending=ending)
            for ending in rng.choice(NIGHT_PHRASES, 2, replace=False)
        ]
    for style, words in _ways():
        prompts += [sentence(template, None, style, words) for template in STYLE_TEMPLATES]
    return prompts


def training_weights(prompts: list[Prompt]) -> np.ndarray:
    """How often training draws each sentence: painters equally often, plain three times as often, aliases seldom."""
    aliases = {painter.alias for painter in PAINTERS if painter.alias}
    raw = np.array([0.25 if prompt.painter_words in aliases else 1.0 for prompt in prompts])
    shares = {PLAIN.name: 3.0} | {painter.name: 1.0 for painter in PAINTERS}
    totals = {style: sum(w for w, p in zip(raw, prompts, strict=True) if p.style == style) for style in shares}
    weights = np.array([w * shares[p.style] / totals[p.style] for w, p in zip(raw, prompts, strict=True)])
    return weights / weights.sum()
