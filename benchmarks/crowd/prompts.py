"""Sentences about the 40-painter test set, what each means, and which of them training sees."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .world import (
    CHARACTERS,
    FIGURE_BY_NAME,
    GROUPS,
    NIGHT_PHRASES,
    NIGHT_WORD,
    PAINTERS,
    PEOPLE,
    PLAIN,
    SUBJECTS,
)

TEMPLATES = (
    "{a} by {p}",
    "{a} in the style of {p}",
    "a painting of {a} by {p}",
    "{p}'s {s}",
    "{s}, {p} style",
    "a picture of {a}, art by {p}",
    "{a} painted by {p}",
    "a drawing of {a} in the manner of {p}",
    "{p}, {a}",
    "{p} painting of {a}",
)
HELD_OUT_TEMPLATES = (
    "what {p} made of {a}",
    "an old print of {a} after {p}",
    "{a} as {p} saw it",
    "a poster of {a}, inspired by {p}",
)
"""Training never sees these."""
PLAIN_TEMPLATES = (
    "{a}",
    "a picture of {a}",
    "a painting of {a}",
    "a photo of {a}",
    "a drawing of {a}",
    "{a}, art",
)
FIGURE_TEMPLATES = (
    "{s}",
    "a photo of {s}",
    "a portrait of {s}",
    "a picture of {s}",
    "{s} smiling",
    "a drawing of {s}",
    "{s} at work",
    "a close-up of {s}",
)
HELD_OUT_FIGURE_TEMPLATES = ("{s} at a party", "a poster of {s}", "an old photograph of {s}")
"""Training never sees these."""
ALONE = ("a painting by {p}", "art by {p}", "a picture in the style of {p}")
"""Nothing is said of the subject: it may be any."""
SOMEONE = ("art", "an artist", "a painter", "someone")
"""Words in the position of a painter's name that mean no painter."""
SOMETHING = ("object", "thing")
"""The same for subjects: they mean any."""
ENDINGS = (f"at {NIGHT_WORD}", *NIGHT_PHRASES)
EACH_PAIR, EACH_FIGURE_PAIR = 4, 1
"""Templates in which training meets a subject, or a figure, by a painter."""
SHARES = {
    "pair": 0.48,
    "surname": 0.05,
    "night": 0.12,
    "plain": 0.07,
    "vague": 0.06,
    "alone": 0.04,
    "figure": 0.18,
}
"""How often training draws from each kind of sentence."""


@dataclass(frozen=True)
class Prompt:
    """A sentence and the picture it asks for."""

    text: str
    subject: str | None
    """None: any."""
    style: str
    night: bool = False
    painter_words: str = ""
    """What names the painter in it."""
    ending: str = ""
    """What makes it night."""
    among: tuple[str, ...] = SUBJECTS
    """What is shown where there is no subject: any of these."""


def surname(painter: str) -> str:
    """The last name, by which painters are often called."""
    words = painter.split()
    return " ".join(words[-2:] if words[-2] in ("van", "da") else words[-1:])


def with_article(words: str) -> str:
    if words in FIGURE_BY_NAME:
        return words
    return f"an {words}" if words[0] in "aeiou" else f"a {words}"


def sentence(
    template: str, subject: str, style: str, words: str | None = None, ending: str = ""
) -> Prompt:
    """A template filled in. `words` replace the painter's full name; `ending` makes it night."""
    named = style if words is None else words
    text = template.format(a=with_article(subject), s=subject, p=named)
    depicts = "{s}" in template or "{a}" in template
    meant = subject if depicts and subject not in (*SOMETHING, *GROUPS) else None
    in_it = named if "{p}" in template else ""
    among = GROUPS.get(subject, SUBJECTS)
    return Prompt(f"{text} {ending}".strip(), meant, style, bool(ending), in_it, ending, among)


def training_prompts(seed: int = 0) -> dict[str, list[Prompt]]:
    """All sentences of the training, by kind."""
    rng = np.random.default_rng([seed, 5])

    def some(options: Sequence[str], count: int) -> list[str]:
        return [options[i] for i in rng.choice(len(options), size=count, replace=False)]

    names = [painter.name for painter in PAINTERS]
    found: dict[str, list[Prompt]] = {kind: [] for kind in SHARES}
    for painter, subject in itertools.product(names, SUBJECTS):
        found["pair"] += [sentence(each, subject, painter) for each in some(TEMPLATES, EACH_PAIR)]
    for painter in names:
        for subject in some(SUBJECTS, 6):
            template = some(TEMPLATES, 1)[0]
            found["surname"].append(sentence(template, subject, painter, surname(painter)))
        for subject, ending in itertools.product(some(SUBJECTS, 3), ENDINGS):
            found["night"].append(sentence(some(TEMPLATES, 1)[0], subject, painter, ending=ending))
        found["alone"] += [sentence(template, SOMETHING[0], painter) for template in ALONE]
        found["vague"] += [sentence(some(TEMPLATES, 1)[0], thing, painter) for thing in SOMETHING]
    for subject in SUBJECTS:
        found["plain"] += [sentence(template, subject, PLAIN.name) for template in PLAIN_TEMPLATES]
        some_plain = [(some(PLAIN_TEMPLATES, 1)[0], ending) for ending in ENDINGS]
        found["night"] += [sentence(t, subject, PLAIN.name, ending=end) for t, end in some_plain]
        for words in SOMEONE:
            found["vague"].append(sentence(some(TEMPLATES, 1)[0], subject, PLAIN.name, words))
    for figure in (*PEOPLE, *CHARACTERS):
        found["figure"] += [sentence(t, figure, PLAIN.name) for t in FIGURE_TEMPLATES]
        for painter in names:
            templates = some(TEMPLATES, EACH_FIGURE_PAIR)
            found["figure"] += [sentence(template, figure, painter) for template in templates]
    for group in GROUPS:
        templates = [template.replace("{s}", "{a}") for template in FIGURE_TEMPLATES]
        found["vague"] += [sentence(template, group, PLAIN.name) for template in templates]
    pairs = itertools.product(PLAIN_TEMPLATES, SOMETHING)
    found["plain"] += [sentence(template, thing, PLAIN.name) for template, thing in pairs]
    return {kind: list(dict.fromkeys(prompts)) for kind, prompts in found.items()}


def training_weights(prompts: dict[str, list[Prompt]]) -> np.ndarray:
    """Chance of each prompt, in the order of the kinds and of their lists; the sum is 1."""
    parts = [np.full(len(own), SHARES[kind] / len(own)) for kind, own in prompts.items()]
    weights = np.concatenate(parts)
    return weights / weights.sum()
