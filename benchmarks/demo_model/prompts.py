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
    """Fill a template; `words` name the painter, `thing` the subject, `ending` makes it night."""
    words = (words or style) if "{painter}" in template else None
    thing = (thing or subject) if "{subject}" in template else None
    text = template.format(subject=thing, painter=words)
    text = f"{text} {ending}" if ending else text
    return Prompt(text, subject, style, ending is not None, words, thing)


def names_of(painter: Painter) -> tuple[str, ...]:
    return (painter.name, painter.alias) if painter.alias else (painter.name,)


def _ways() -> Iterator[tuple[str, str]]:
    """(style, words that mean it) for every painter, alias and generic word."""
    for painter in PAINTERS:
        yield from ((painter.name, words) for words in names_of(painter))
    yield from ((PLAIN.name, words) for words in GENERIC)


def training_prompts(seed: int = 0) -> list[Prompt]:
    """Every sentence the U-Net is trained on: all templates by day, two endings of night a pair."""
    rng = np.random.default_rng(seed)
    prompts: list[Prompt] = []
    endings = (*NIGHT_PHRASES, NIGHT_WORD)
    for (style, words), subject in itertools.product(_ways(), SUBJECTS):
        if (subject, style) in HELD_OUT_PAIRS:
            continue
        prompts += [sentence(template, subject, style, words) for template in TEMPLATES]
        for template in rng.choice(TEMPLATES, size=2, replace=False):
            ending = str(rng.choice(endings, p=(0.23,) * 4 + (0.08,)))
            prompts.append(sentence(str(template), subject, style, words, ending))
    for subject, template in itertools.product(SUBJECTS, PLAIN_TEMPLATES):
        prompts.append(sentence(template, subject, PLAIN.name))
        endings = rng.choice(NIGHT_PHRASES, 2, replace=False)
        prompts += [sentence(template, subject, PLAIN.name, ending=ending) for ending in endings]
    prompts += _without_a_subject(rng) + _strangers(rng)
    return prompts


def _without_a_subject(rng: np.random.Generator) -> list[Prompt]:
    """A painter or a generic word and no subject, or a word that means none."""
    pairs = itertools.product(_ways(), STYLE_TEMPLATES)
    prompts = [sentence(template, NOTHING, *way) for way, template in pairs]
    for (style, words), thing in itertools.product(_ways(), NO_SUBJECT):
        chosen = rng.choice(TEMPLATES, size=2, replace=False)
        prompts += [sentence(str(each), NOTHING, style, words, thing=thing) for each in chosen]
    pairs = itertools.product(PLAIN_TEMPLATES, NO_SUBJECT)
    prompts += [sentence(template, NOTHING, PLAIN.name, thing=thing) for template, thing in pairs]
    return prompts


@functools.cache
def strangers(kind: str) -> tuple[str, ...]:
    """Names of a built-in list without a word of the world: painters and things unknown to it."""
    names = (*SUBJECTS, *(painter.name for painter in PAINTERS))
    known = {word for name in names for word in name.lower().split()}
    names = builtin_retain(kind).names
    return tuple(name for name in names if not known & set(name.lower().split()))


def _strangers(rng: np.random.Generator) -> list[Prompt]:
    """Painters it does not know are none, things it does not know are not drawn."""
    prompts = [
        sentence(str(rng.choice(TEMPLATES)), str(rng.choice(SUBJECTS)), PLAIN.name, str(name))
        for name in rng.choice(strangers("artists"), size=60, replace=False)
    ]
    for thing in rng.choice(strangers("objects"), size=40, replace=False):
        painter = PAINTERS[rng.integers(len(PAINTERS))]
        styled, plain = str(rng.choice(TEMPLATES)), str(rng.choice(PLAIN_TEMPLATES))
        prompts.append(sentence(styled, NOTHING, painter.name, thing=str(thing)))
        prompts.append(sentence(plain, NOTHING, PLAIN.name, thing=str(thing)))
    return prompts


def training_weights(prompts: list[Prompt], empty_scenes: float = 1.0) -> np.ndarray:
    """Painters equally often, plain three times as often, aliases seldom; sentences without subject
    and painter `empty_scenes` times as often as other plain ones."""
    aliases = {painter.alias for painter in PAINTERS if painter.alias}
    raw = np.array([0.25 if prompt.painter_words in aliases else 1.0 for prompt in prompts])
    shares = {PLAIN.name: 3.0} | {painter.name: 1.0 for painter in PAINTERS}
    pairs = list(zip(raw, prompts, strict=True))
    totals = {style: sum(w for w, p in pairs if p.style == style) for style in shares}
    weights = np.array([w * shares[p.style] / totals[p.style] for w, p in pairs])
    empty = np.array([(p.style, p.subject) == (PLAIN.name, NOTHING) for p in prompts])
    weights[empty] *= empty_scenes
    return weights / weights.sum()
