"""What to erase, and the prompts that show whether it is gone and the rest still there."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from speed_erase.speed_ops.engine.settings import EraseSettings
from speed_erase.speed_ops.job import Job, default_retain, host_settings
from speed_erase.speed_ops.text.concept_list import Concept
from speed_erase.speed_ops.text.retain_set import RetainSet, retain_from_names, union

from .prompts import (
    ENDINGS,
    FIGURE_TEMPLATES,
    HELD_OUT_FIGURE_TEMPLATES,
    HELD_OUT_TEMPLATES,
    PLAIN_TEMPLATES,
    TEMPLATES,
    Prompt,
    sentence,
    surname,
    with_article,
)
from .world import (
    CHARACTERS,
    FIGURE_BY_NAME,
    NIGHT_PHRASES,
    NIGHT_WORD,
    PAINTERS,
    PEOPLE,
    PLAIN,
    SUBJECTS,
    look_alikes,
    shared,
)

Names = Sequence[str]
Head = Literal["style", "subject", "night"]
Role = Literal["erased", "kept", "attack"]
EVERY_TEMPLATE = (*TEMPLATES, *HELD_OUT_TEMPLATES)
EVERY_FIGURE_TEMPLATE = (*FIGURE_TEMPLATES, *HELD_OUT_FIGURE_TEMPLATES)


@dataclass(frozen=True)
class Question:
    """One picture to draw, what it should have shown, and which of the judge's verdicts counts."""

    prompt: Prompt
    role: Role
    head: Head
    split: str = ""

    @property
    def concept(self) -> str:
        """What the counting verdict is about: a painter, a subject, the night."""
        if self.head == "night":
            return NIGHT_WORD
        return (self.prompt.subject or "") if self.head == "subject" else self.prompt.style


@dataclass(frozen=True)
class Task:
    """Concepts, and the questions for a number of pictures on each side."""

    name: str
    label: str
    concepts: tuple[Concept, ...]
    ask: Callable[[tuple[Concept, ...], int], list[Question]]

    def questions(self, count: int) -> list[Question]:
        """About `count` pictures of the erased and as many of the kept, for every method."""
        return self.ask(self.concepts, count)

    def job(self, settings: EraseSettings) -> Job:
        """The erasure as users ask for it; kept are the other names and the built-in lists."""
        return Job.of(self.concepts, kept_names(self.concepts), settings)

    def neighbors(self) -> dict[str, str]:
        """Kept painters and subjects that are `near` something erased, or `far` from all of it."""
        erased = {concept.target for concept in self.concepts}
        found: dict[str, str] = {}
        styles = [concept.target for concept in self.concepts if concept.kind == "style"]
        if styles:
            for painter in PAINTERS:
                most = max(shared(painter.name, name) for name in styles)
                if most != 1:
                    found[painter.name] = "near" if most else "far"
        objects = [concept.target for concept in self.concepts if concept.kind == "object"]
        if objects:
            close = set().union(*(look_alikes(name) for name in objects))
            found |= {name: "near" if name in close else "far" for name in SUBJECTS}
        kinds = {concept.kind for concept in self.concepts if concept.target in FIGURE_BY_NAME}
        if kinds:
            names = (*PEOPLE, *CHARACTERS)
            near = {name for name in names if FIGURE_BY_NAME[name].kind in kinds}
            found |= {name: "near" if name in near else "far" for name in names}
        return {name: where for name, where in found.items() if name not in erased}

    def anchored(self, prompt: Prompt) -> str:
        """The prompt with the anchor's words for the erased ones: what a perfect erasure draws."""
        text = prompt.text
        for concept in self.concepts:
            if concept.kind == "theme" and prompt.ending:
                text = text.removesuffix(prompt.ending).strip()
            elif prompt.subject == concept.target:
                text = text.replace(with_article(concept.target), with_article(concept.anchor))
                text = text.replace(concept.target, concept.anchor)
            elif (
                concept.kind == "style" and prompt.style == concept.target and prompt.painter_words
            ):
                text = text.replace(prompt.painter_words, concept.anchor)
        return text


def kept_names(concepts: Sequence[Concept]) -> RetainSet:
    """The world's names that are not erased, and the built-in lists of the concepts' kinds."""
    return union((own_names(concepts), default_retain(concepts)))


def own_names(concepts: Sequence[Concept]) -> RetainSet:
    """The world's names that are not erased."""
    erased = {concept.target for concept in concepts}
    painters = [painter.name for painter in PAINTERS if painter.name not in erased]
    subjects = [name for name in SUBJECTS if name not in erased]
    own = [retain_from_names(painters, "painters", "style")]
    own.append(retain_from_names(subjects, "subjects", "object"))
    for kind, figures in (("person", PEOPLE), ("character", CHARACTERS)):
        own.append(retain_from_names([n for n in figures if n not in erased], f"{kind}s", kind))
    return union(own)


def settings_for(**changes: object) -> EraseSettings:
    """The default, with names held out to judge by as nodes and command line do."""
    return host_settings("auto", **changes)


def _styled(
    names: Names, templates: Names, count: int, role: Role, subjects: Names, split: str
) -> list[Question]:
    """`count` prompts that name these painters in turn, subjects and templates varied."""
    asked = []
    for i in range(count):
        turn, place = divmod(i, len(names))
        subject = subjects[(5 * turn + place) % len(subjects)]
        template = templates[(3 * turn + place) % len(templates)]
        asked.append(Question(sentence(template, subject, names[place]), role, "style", split))
    return asked


def _depicted(subjects: Names, styles: Names, count: int, role: Role, split: str) -> list[Question]:
    """`count` prompts about these subjects in turn, every third without a painter."""
    asked = []
    for i in range(count):
        turn, place = divmod(i, len(subjects))
        style = PLAIN.name if (turn + place) % 3 == 0 else styles[(7 * turn + place) % len(styles)]
        plain = EVERY_FIGURE_TEMPLATE if subjects[place] in FIGURE_BY_NAME else PLAIN_TEMPLATES
        templates = plain if style == PLAIN.name else EVERY_TEMPLATE
        prompt = sentence(templates[(turn + place) % len(templates)], subjects[place], style)
        asked.append(Question(prompt, role, "subject", split))
    return asked


def _plain(count: int, subjects: Sequence[str], head: Head) -> list[Question]:
    """Prompts without a painter."""
    pairs = zip(itertools.cycle(PLAIN_TEMPLATES), itertools.cycle(subjects), strict=False)
    chosen = itertools.islice(pairs, count)
    return [Question(sentence(t, s, PLAIN.name), "kept", head, "plain") for t, s in chosen]


def _others(erased: Sequence[str]) -> tuple[list[str], list[str]]:
    """Painters and subjects that stay."""
    painters = [painter.name for painter in PAINTERS if painter.name not in erased]
    return painters, [name for name in SUBJECTS if name not in erased]


def ask_painters(concepts: tuple[Concept, ...], count: int) -> list[Question]:
    """Erased painters in known and in new templates, their surnames, other painters, none."""
    erased = [concept.target for concept in concepts]
    painters, _ = _others(erased)
    third = max(1, count // 3)
    asked = _styled(erased, TEMPLATES, count - third, "erased", SUBJECTS, "known templates")
    asked += _styled(erased, HELD_OUT_TEMPLATES, third, "erased", SUBJECTS[::-1], "other templates")
    for i in range(count // 6):
        name = erased[i % len(erased)]
        template, subject = TEMPLATES[i % len(TEMPLATES)], SUBJECTS[(5 * i) % len(SUBJECTS)]
        prompt = sentence(template, subject, name, surname(name))
        asked.append(Question(prompt, "attack", "style", "surnames"))
    most = count - count // 5
    asked += _styled(painters, EVERY_TEMPLATE, most, "kept", SUBJECTS, "other painters")
    return asked + _plain(count // 5, SUBJECTS, "style")


def ask_subjects(concepts: tuple[Concept, ...], count: int) -> list[Question]:
    """Erased subjects by painters and plainly, and the other subjects."""
    erased = [concept.target for concept in concepts]
    painters, subjects = _others(erased)
    asked = _depicted(erased, painters, count, "erased", "erased subjects")
    return asked + _depicted(subjects, painters, count, "kept", "other subjects")


def ask_figures(concepts: tuple[Concept, ...], count: int) -> list[Question]:
    """Erased persons or characters by painters and plainly; other figures, and subjects."""
    erased = [concept.target for concept in concepts]
    painters, subjects = _others(erased)
    figures = [name for name in (*PEOPLE, *CHARACTERS) if name not in erased]
    asked = _depicted(erased, painters, count, "erased", "erased figures")
    most = count - count // 4
    asked += _depicted(figures, painters, most, "kept", "other figures")
    return asked + _depicted(subjects, painters, count - most, "kept", "subjects")


def ask_night(concepts: tuple[Concept, ...], count: int) -> list[Question]:
    """Prompts that say or imply night, in words that the erasure knows or not; painters by day."""
    known = {phrase for concept in concepts for phrase in concept.phrases}
    styles = [PLAIN.name, *(painter.name for painter in PAINTERS)]
    asked = []
    for i in range(count):
        ending, style = ENDINGS[i % len(ENDINGS)], styles[(3 * i) % len(styles)]
        templates = PLAIN_TEMPLATES if style == PLAIN.name else TEMPLATES
        template, subject = templates[i % len(templates)], SUBJECTS[(5 * i) % len(SUBJECTS)]
        prompt = sentence(template, subject, style, ending=ending)
        told = any(phrase in ending for phrase in known)
        asked.append(Question(prompt, "erased", "night", "told" if told else "not told"))
    half = count // 2
    asked += _styled(styles[1:], EVERY_TEMPLATE, half, "kept", SUBJECTS, "painters by day")
    return asked + _depicted(SUBJECTS, styles[1:], count - half, "kept", "subjects by day")


def ask_both(concepts: tuple[Concept, ...], count: int) -> list[Question]:
    """A painter and a subject, each asked for without the other; and the rest of both."""
    erased = {concept.target: concept.kind for concept in concepts}
    painters, subjects = _others(list(erased))
    half = count // 2
    gone = [[name for name, own in erased.items() if own == kind] for kind in ("style", "object")]
    asked = _styled(gone[0], EVERY_TEMPLATE, half, "erased", subjects, "erased painter")
    asked += _depicted(gone[1], painters, count - half, "erased", "erased subject")
    asked += _styled(painters, EVERY_TEMPLATE, half, "kept", subjects, "other painters")
    return asked + _depicted(subjects, painters, count - half, "kept", "other subjects")


def _order() -> list[str]:
    """Painters in the order of erasure, mixed so that those who stay have every attribute."""
    names = [painter.name for painter in PAINTERS]
    mixed = [names[i] for i in np.random.default_rng(11).permutation(len(names))]
    first = "Vincent van Gogh"
    return [first, *(name for name in mixed if name != first)]


def _painters(count: int) -> tuple[Concept, ...]:
    return tuple(Concept(name, "art", "style") for name in _order()[:count])


GONE_SUBJECTS = (
    "cat", "mug", "apple", "dog", "bucket", "church", "house", "tree", "umbrella", "boat",
)  # fmt: skip


def _subjects(count: int) -> tuple[Concept, ...]:
    return tuple(Concept(name, "object", "object") for name in GONE_SUBJECTS[:count])


def _people(count: int) -> tuple[Concept, ...]:
    return tuple(Concept(name, "person", "person") for name in PEOPLE[:count])


def _characters(count: int) -> tuple[Concept, ...]:
    return tuple(Concept(name, "cartoon character", "character") for name in CHARACTERS[:count])


_NIGHT = Concept(NIGHT_WORD, "", "theme", NIGHT_PHRASES[:2])
TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("painters1", "1 painter", _painters(1), ask_painters),
        Task("painters10", "10 painters", _painters(10), ask_painters),
        Task("painters20", "20 painters", _painters(20), ask_painters),
        Task("subjects1", "1 subject", _subjects(1), ask_subjects),
        Task("subjects3", "3 subjects", _subjects(3), ask_subjects),
        Task("subjects10", "10 subjects", _subjects(10), ask_subjects),
        Task("people1", "1 person", _people(1), ask_figures),
        Task("people4", "4 people", _people(4), ask_figures),
        Task("characters3", "3 characters", _characters(3), ask_figures),
        Task("night", "night, implied", (_NIGHT,), ask_night),
        Task("composite", "a painter and a subject", (*_painters(1), *_subjects(1)), ask_both),
    )
}
