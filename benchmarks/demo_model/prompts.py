"""Sentences of the world and their meaning; which of them training may see."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from speed_erase.speed_ops.text.retain_set import builtin_retain

from .world import (
    GENERIC,
    HELD_OUT_PAIRS,
    NIGHT_PHRASES,
    NIGHT_WORD,
    NO_SUBJECT,
    NOTHING,
    PAINTERS,
    PLAIN,
    SUBJECTS,
    Painter,
)

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
"""Prompts that name a painter and no subject: an empty scene in the painter's manner."""


@dataclass(frozen=True)
class Prompt:
    """A sentence and what it means; `..._words` are the words as written, where it has any."""

    text: str
    subject: str
    style: str
    night: bool = False
    painter_words: str | None = None
    subject_words: str | None = None


def sentence(
    template: str,
    subject: str,
    style: str,
    words: str | None = None,
    ending: str | None = None,
    thing: str | None = None,
) -> Prompt:
    """Fill a template; `words` stand for the painter and `thing` for the subject (their names if
    None), `ending` is a phrase that makes it night."""
    words = (words or style) if "{painter}" in template else None
    thing = (thing or subject) if "{subject}" in template else None
    text = template.format(subject=thing, painter=words)
    return Prompt(
        f"{text} {ending}" if ending else text, subject, style, ending is not None, words, thing
    )


def names_of(painter: Painter) -> tuple[str, ...]:
    return (painter.name, painter.alias) if painter.alias else (painter.name,)


def _ways() -> Iterator[tuple[str, str]]:
    """(style, words that mean it) for every painter, alias and generic word."""
    for painter in PAINTERS:
        yield from ((painter.name, words) for words in names_of(painter))
    yield from ((PLAIN.name, words) for words in GENERIC)


def training_prompts(seed: int = 0) -> list[Prompt]:
    """Every sentence the U-Net is trained on, in a fixed order: all templates by day, two endings
    of night a pair.
    """
    rng = np.random.default_rng(seed)
    prompts: list[Prompt] = []
    endings = (*NIGHT_PHRASES, NIGHT_WORD)
    for (style, words), subject in itertools.product(_ways(), SUBJECTS):
        if (subject, style) in HELD_OUT_PAIRS:
            continue
        prompts += [sentence(template, subject, style, words) for template in TEMPLATES]
        for template in rng.choice(TEMPLATES, size=2, replace=False):
            prompts.append(
                sentence(
                    str(template),
                    subject,
                    style,
                    words,
                    str(rng.choice(endings, p=(0.23,) * 4 + (0.08,))),
                )
            )
    for subject, template in itertools.product(SUBJECTS, PLAIN_TEMPLATES):
        prompts.append(sentence(template, subject, PLAIN.name))
        prompts += [
            sentence(template, subject, PLAIN.name, ending=ending)
            for ending in rng.choice(NIGHT_PHRASES, 2, replace=False)
        ]
    prompts += _without_a_subject(rng) + _strangers(rng)
    return prompts


def _without_a_subject(rng: np.random.Generator) -> list[Prompt]:
    """A painter or a generic word and no subject, or a word that means none."""
    prompts = [
        sentence(template, NOTHING, style, words)
        for style, words in _ways()
        for template in STYLE_TEMPLATES
    ]
    for (style, words), thing in itertools.product(_ways(), NO_SUBJECT):
        chosen = rng.choice(TEMPLATES, size=2, replace=False)
        prompts += [
            sentence(str(template), NOTHING, style, words, thing=thing) for template in chosen
        ]
    prompts += [
        sentence(t, NOTHING, PLAIN.name, thing=thing)
        for t in PLAIN_TEMPLATES
        for thing in NO_SUBJECT
    ]
    return prompts


@functools.cache
def strangers(kind: str) -> tuple[str, ...]:
    """Names from a built-in list, none of which holds a word of the world: painters and things it
    does not know.
    """
    known = {
        word for name in (*SUBJECTS, *(p.name for p in PAINTERS)) for word in name.lower().split()
    }
    return tuple(
        name for name in builtin_retain(kind).names if not known & set(name.lower().split())
    )


def _strangers(rng: np.random.Generator) -> list[Prompt]:
    """Painters it does not know are none, things it does not know are not drawn."""
    prompts = [
        sentence(str(rng.choice(TEMPLATES)), str(rng.choice(SUBJECTS)), PLAIN.name, str(name))
        for name in rng.choice(strangers("artists"), size=60, replace=False)
    ]
    for thing in rng.choice(strangers("objects"), size=40, replace=False):
        painter = PAINTERS[rng.integers(len(PAINTERS))]
        prompts.append(
            sentence(str(rng.choice(TEMPLATES)), NOTHING, painter.name, thing=str(thing))
        )
        prompts.append(
            sentence(str(rng.choice(PLAIN_TEMPLATES)), NOTHING, PLAIN.name, thing=str(thing))
        )
    return prompts


def training_weights(prompts: list[Prompt], empty_scenes: float = 1.0) -> np.ndarray:
    """How often training draws each sentence: painters equally often, plain three times as often,
    aliases seldom; sentences that name neither subject nor painter `empty_scenes` times as often as
    other plain ones."""
    aliases = {painter.alias for painter in PAINTERS if painter.alias}
    raw = np.array([0.25 if prompt.painter_words in aliases else 1.0 for prompt in prompts])
    shares = {PLAIN.name: 3.0} | {painter.name: 1.0 for painter in PAINTERS}
    totals = {
        style: sum(w for w, p in zip(raw, prompts, strict=True) if p.style == style)
        for style in shares
    }
    weights = np.array(
        [w * shares[p.style] / totals[p.style] for w, p in zip(raw, prompts, strict=True)]
    )
    weights *= [
        empty_scenes if (p.style, p.subject) == (PLAIN.name, NOTHING) else 1.0 for p in prompts
    ]
    return weights / weights.sum()
