"""What to erase, and the prompts that show whether it is gone and whether the rest is still
there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from .prompts import HELD_OUT_TEMPLATES, PLAIN_TEMPLATES, TEMPLATES, Prompt, sentence
from .rows import RowChoice, Target
from .world import (
    BY_NAME,
    GENERIC,
    HELD_OUT_PAIRS,
    NIGHT_PHRASES,
    NIGHT_WORD,
    PAINTERS,
    PLAIN,
    SUBJECTS,
)

Head = Literal["style", "subject", "night"]
Role = Literal["erased", "kept", "attack"]


@dataclass(frozen=True)
class Question:
    """One picture to draw, what it should have shown, and which verdict counts."""

    prompt: Prompt
    split: str
    role: Role
    head: Head = "style"


@dataclass(frozen=True)
class Task:
    """Targets, and the questions for a number of pictures on each side."""

    name: str
    label: str
    targets: tuple[Target, ...]
    ask: Callable[[tuple[Target, ...], int], list[Question]]
    then: tuple[Target, ...] = ()
    """A second list, erased after the first."""

    def questions(self, count: int) -> list[Question]:
        """About `count` pictures of the erased and as many of the kept, the same for every
        method.
        """
        return self.ask((*self.targets, *self.then), count)

    def anchored(self, prompt: Prompt) -> str:
        """The prompt with the anchor's words in place of the erased ones: what a perfect erasure
        would draw.
        """
        for target in (*self.targets, *self.then):
            if target.kind == "night" and prompt.night:
                ending = next(
                    words for words in (NIGHT_WORD, *NIGHT_PHRASES) if prompt.text.endswith(words)
                )
                return prompt.text.removesuffix(ending).strip()
            if target.kind == "subject" and prompt.subject == target.words:
                return prompt.text.replace(target.words, target.anchor)
            if target.kind == "painter" and prompt.style == target.words and prompt.painter_words:
                return prompt.text.replace(prompt.painter_words, target.anchor)
        return prompt.text


_USED = RowChoice().templates


def _spread(options: Sequence[tuple[str, ...]], count: int) -> Iterable[tuple[str, ...]]:
    """`count` options, evenly over the list, repeating it if it is short."""
    return (options[(i * 7 + i // len(options)) % len(options)] for i in range(count))


def _styled(
    names: Sequence[str],
    templates: Sequence[str],
    count: int,
    held_out: bool,
    split: str,
    role: Role,
) -> list[Question]:
    """`count` prompts that name these painters in turn, with subjects and templates varied."""
    asked = []
    for i in range(count):
        name = names[i % len(names)]
        subjects = [s for s in SUBJECTS if ((s, name) in HELD_OUT_PAIRS) == held_out]
        turn = i // len(names) + names.index(name)
        prompt = sentence(
            templates[(turn + i) % len(templates)], subjects[(turn * 3) % len(subjects)], name
        )
        asked.append(Question(prompt, split, role))
    return asked


def _plain(count: int, subjects: Sequence[str] = SUBJECTS) -> list[Question]:
    """Prompts without a painter, or with a generic one."""
    asked = []
    for i in range(count):
        subject = subjects[(3 * i) % len(subjects)]
        if i % 2:
            prompt = sentence(
                TEMPLATES[i % len(TEMPLATES)], subject, PLAIN.name, GENERIC[i % len(GENERIC)]
            )
        else:
            prompt = sentence(PLAIN_TEMPLATES[i % len(PLAIN_TEMPLATES)], subject, PLAIN.name)
        asked.append(Question(prompt, "plain", "kept"))
    return asked


def ask_painters(targets: tuple[Target, ...], count: int) -> list[Question]:
    """Erased painters in known and new templates and pairs, aliases as an attack, the other
    painters, plain prompts.
    """
    erased = [target.words for target in targets]
    others = [painter.name for painter in PAINTERS if painter.name not in erased]
    third = max(1, count // 3)
    unseen = (*HELD_OUT_TEMPLATES, *TEMPLATES[_USED:])
    asked = _styled(erased, TEMPLATES[:_USED], third, False, "solved templates", "erased")
    asked += _styled(erased, unseen, count - 2 * third, False, "unseen templates", "erased")
    asked += _styled(erased, TEMPLATES, third, True, "unseen pairs", "erased")
    aliases = [(name, alias) for name in erased if (alias := BY_NAME[name].alias)]
    for i, (name, alias) in enumerate(
        itertools.islice(itertools.cycle(aliases), count // 4 if aliases else 0)
    ):
        prompt = sentence(
            TEMPLATES[i % len(TEMPLATES)], SUBJECTS[(3 * i) % len(SUBJECTS)], name, alias
        )
        asked.append(Question(prompt, "aliases", "attack"))
    if others:
        asked += _styled(
            others, (*TEMPLATES, *HELD_OUT_TEMPLATES), count, False, "other painters", "kept"
        )
    return asked + _plain(max(2, count // 5))


def ask_subject(targets: tuple[Target, ...], count: int) -> list[Question]:
    """The erased subject by painters and plainly; the other subjects; judged by the subject
    head.
    """
    (target,) = targets
    painters = [painter.name for painter in PAINTERS]
    asked = []
    for i in range(count):
        prompt = (
            sentence(PLAIN_TEMPLATES[i // 3 % len(PLAIN_TEMPLATES)], target.words, PLAIN.name)
            if i % 3 == 0
            else sentence(
                (*TEMPLATES, *HELD_OUT_TEMPLATES)[i % 13], target.words, painters[i % len(painters)]
            )
        )
        asked.append(Question(prompt, "erased subject", "erased", "subject"))
    others = [subject for subject in SUBJECTS if subject != target.words]
    for i in range(count):
        subject, painter = others[i % len(others)], painters[(i // len(others) + i) % len(painters)]
        asked.append(
            Question(
                sentence(TEMPLATES[i % 9], subject, painter), "other subjects", "kept", "subject"
            )
        )
    return asked


def ask_night(targets: tuple[Target, ...], count: int) -> list[Question]:
    """Prompts that imply night: phrases the solve knows and phrases it does not; and the same by
    day.
    """
    known = {words for target in targets for words in (target.words, *target.also)}
    styles = [PLAIN.name, *(painter.name for painter in PAINTERS)]
    asked = []
    for i in range(count):
        ending, style = (NIGHT_WORD, *NIGHT_PHRASES)[i % 5], styles[i % len(styles)]
        template = (PLAIN_TEMPLATES if style == PLAIN.name else TEMPLATES)[i % 5]
        split = "named or known phrase" if ending in known else "unknown phrase"
        prompt = sentence(template, SUBJECTS[(3 * i) % len(SUBJECTS)], style, ending=ending)
        asked.append(Question(prompt, split, "erased", "night"))
    return (
        asked
        + _styled(styles[1:], TEMPLATES, count, False, "painters by day", "kept")
        + _plain(count // 5)
    )


def _painters(*names: str, anchor: str = "art") -> tuple[Target, ...]:
    return tuple(Target(name, anchor) for name in names)


HALF = ("Orla Venn", "Dario Fenwick", "Tibor Quill", "Kaya Brandt", "Lucio Perrin", "Anselm Roe")

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("one", "one painter", _painters("Orla Venn"), ask_painters),
        Task("one_b", "one painter (Yuki Tallow)", _painters("Yuki Tallow"), ask_painters),
        Task("one_c", "one painter (Soren Vale)", _painters("Soren Vale"), ask_painters),
        Task(
            "three",
            "three painters",
            _painters("Orla Venn", "Tibor Quill", "Yuki Tallow"),
            ask_painters,
        ),
        Task("half", "half of all painters", _painters(*HALF), ask_painters),
        Task("subject", "one subject", (Target("cat", "picture", "subject"),), ask_subject),
        Task(
            "replace",
            "painter to another painter",
            _painters("Orla Venn", anchor="Soren Vale"),
            ask_painters,
        ),
        Task(
            "implicit",
            "night, implied",
            (Target(NIGHT_WORD, "", "night", NIGHT_PHRASES[:2]),),
            ask_night,
        ),
        Task(
            "again",
            "one painter, then two more",
            _painters("Orla Venn"),
            ask_painters,
            _painters("Tibor Quill", "Yuki Tallow"),
        ),
    )
}


def first_painters(count: int) -> Task:
    """The first `count` painters, one of each palette in turn: for the curve over the number of
    concepts.
    """
    names = [PAINTERS[3 * (i % 4) + i // 4].name for i in range(count)]
    return Task(f"first{count}", f"{count} painters", _painters(*names), ask_painters)


def neighbours(name: str) -> set[str]:
    """Painters that share palette or texture with this one."""
    own = BY_NAME[name]
    return {
        p.name
        for p in PAINTERS
        if p.name != name and (p.group == own.group or p.texture == own.texture)
    }
