"""Rows of the world's concepts for the engine: targets and anchors one to one, what is retained,
and unseen probes.

A row is one token position of one prompt. Positions come from the engine's own rules
(`speed_ops.prompts.tokens`), prompts from the world's templates, so that each choice (which
positions, how many templates, which side) can be varied alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from speed_erase.speed_ops.engine.rows import Rows
from speed_erase.speed_ops.text.kinds import Prompt
from speed_erase.speed_ops.text.tokens import (
    IN_CONTEXT,
    Position,
    RowKey,
    Stream,
    TokenSpan,
    locate,
    row_key,
)

from .prompts import HELD_OUT_TEMPLATES, PLAIN_TEMPLATES, TEMPLATES
from .text_encoder import LENGTH
from .world import GENERIC, NIGHT_PHRASES, NIGHT_WORD, PAINTERS, SUBJECTS

_STREAM = Stream(lambda text: (), LENGTH)
"""Only its rules for rows are used."""
Kind = Literal["painter", "subject", "night"]
Side = Literal["bare", "targets", "both"]


class Text(Protocol):
    """Whatever turns prompts into rows."""

    def rows(self, texts: Sequence[str]) -> Tensor:
        """All rows of each prompt, (n, 77, d)."""

    def token_ids(self, text: str) -> list[int]:
        """Text tokens without start and end."""


@dataclass(frozen=True)
class Target:
    """One concept to erase and the words that take its place; empty anchor words leave the name
    out.
    """

    words: str
    anchor: str = "art"
    kind: Kind = "painter"
    also: tuple[str, ...] = ()
    """Other words for it that the solve is told about."""


@dataclass(frozen=True)
class RowChoice:
    """Which rows stand for a concept."""

    side: Side = "both"
    """bare: the name alone on both sides, as published; targets: contexts for targets only;
    both.
    """
    templates: int = 5
    """Templates around a target, besides its bare name."""
    fillers: int = 3
    """Subjects (for a painter) or painters (for a subject) that fill them."""
    positions: Position = IN_CONTEXT
    retain_templates: int = 5
    retain_fillers: int = 2
    retain_positions: Position = IN_CONTEXT


@dataclass(frozen=True, eq=False)
class ErasureRows:
    """Everything a method is given."""

    targets: Rows
    anchors: Rows
    retain: Rows
    invariants: Tensor
    """`77 x d`: all rows of the empty prompt."""
    probes: tuple[Rows, Rows]


@dataclass(frozen=True)
class PromptPair:
    """A prompt with the target and the same prompt with its anchor."""

    target: Prompt
    anchor: Prompt
    bare: bool = False


def filled(template: str, hole: str, words: str, **others: str) -> Prompt:
    """The template with `words` in its hole; the prompt knows where they end. Empty words are left
    out cleanly.
    """
    head, tail = template.split("{" + hole + "}")
    head, tail = head.format(**others), tail.format(**others)
    if not words:
        head, tail = (
            head.rstrip(),
            (tail.removeprefix("'s").lstrip() if not head.strip() else tail.removeprefix("'s")),
        )
    return Prompt(head + words + tail, len(head + words))


def target_pairs(
    target: Target, templates: Sequence[str], fillers: int, offset: int = 0
) -> list[PromptPair]:
    """The target's words in each template; `fillers` fill the other hole, starting from `offset`
    and moving on.
    """
    pairs = []
    for words in (target.words, *target.also):
        for i, template in enumerate(templates):
            for j in range(fillers if _other_hole(template, target.kind) else 1):
                others = _others(target.kind, template, offset + i + j * 3, target)
                pairs.append(
                    PromptPair(
                        *(
                            filled(template, target.kind, w, **others)
                            for w in (words, target.anchor)
                        )
                    )
                )
    return pairs


def solve_templates(kind: Kind) -> tuple[str, ...]:
    """Templates of a solve, in the order in which they are taken; the rest of them serve as unseen
    ones.
    """
    if kind == "painter":
        return TEMPLATES
    if kind == "subject":
        return (
            PLAIN_TEMPLATES[0],
            TEMPLATES[0],
            PLAIN_TEMPLATES[1],
            TEMPLATES[1],
            TEMPLATES[2],
            *TEMPLATES[3:],
        )
    return tuple(f"{template} {{night}}" for template in (*PLAIN_TEMPLATES[:3], *TEMPLATES))


def unseen_templates(kind: Kind, used: int) -> tuple[str, ...]:
    """Templates that a solve with `used` templates has not seen."""
    held_out = (
        tuple(f"{t} {{night}}" for t in HELD_OUT_TEMPLATES)
        if kind == "night"
        else HELD_OUT_TEMPLATES
    )
    return (*held_out, *solve_templates(kind)[max(used, 5) :])


def build(text: Text, targets: Sequence[Target], choice: RowChoice) -> ErasureRows:
    """Rows for a solve, and probe rows at all kinds of positions in templates it does not see."""
    context = choice.side != "bare"
    pairs, probes = [], []
    for target in targets:
        bare = [
            PromptPair(Prompt.bare(w), Prompt.bare(target.anchor), True)
            for w in (target.words, *target.also)
        ]
        inside = target_pairs(
            target, solve_templates(target.kind)[: choice.templates], choice.fillers
        )
        pairs.append([*bare, *inside] if context else bare)
        probes.append(
            target_pairs(target, unseen_templates(target.kind, choice.templates), 2, offset=5)
        )
    taken: set[RowKey] = set()
    positions = choice.positions if context else Position.LAST_SUBJECT
    solved = pair_rows(text, targets, pairs, positions, taken)
    unseen = pair_rows(text, targets, probes, IN_CONTEXT, taken)
    invariants = text.rows([""])[0]
    return ErasureRows(*solved, retain_rows(text, targets, choice), invariants, unseen)


def pair_rows(
    text: Text,
    targets: Sequence[Target],
    pairs: Sequence[Sequence[PromptPair]],
    positions: Position,
    taken: set[RowKey],
) -> tuple[Rows, Rows]:
    """Target and anchor rows of the same templates and positions; a row that a causal encoder
    repeats counts once.
    """
    found: list[tuple[int, PromptPair, int, int]] = []
    for group, own in enumerate(pairs):
        for pair in own:
            spans = [
                locate(prompt, text.token_ids, LENGTH) for prompt in (pair.target, pair.anchor)
            ]
            for row, other in _aligned(
                spans[0], spans[1], positions, targets[group].kind, pair.bare
            ):
                key = row_key(spans[0], row)
                if key in taken or key == row_key(spans[1], other):
                    continue
                taken.add(key)
                found.append((group, pair, row, other))
    groups = tuple(group for group, *_ in found)
    flags = tuple(not pair.bare for _, pair, _, _ in found)
    values = (
        _gather(text, [(pair.target.text, row) for _, pair, row, _ in found]),
        _gather(text, [(pair.anchor.text, row) for _, pair, _, row in found]),
    )
    names = tuple(target.words for target in targets), tuple(target.anchor for target in targets)
    return Rows(values[0], groups, names[0], flags), Rows(values[1], groups, names[1], flags)


def _aligned(
    target: TokenSpan, anchor: TokenSpan, positions: Position, kind: Kind, bare: bool
) -> Iterable[tuple[int, int]]:
    """Rows of both prompts at the same positions; of a bare implicit concept all rows, as in the
    paper.
    """
    if kind == "night" and bare:
        return ((row, row) for row in range(1, LENGTH))
    return zip(*_STREAM.paired_rows(positions, target, anchor), strict=True)


def retain_rows(text: Text, targets: Sequence[Target], choice: RowChoice) -> Rows:
    """Other painters, subjects, generic words and plain prompts: one concept each, bare name
    first.
    """
    wanted: list[tuple[int, str, int, bool]] = []
    names = list(retained_names(targets))
    for group, (words, kind) in enumerate(names):
        taken: set[RowKey] = set()
        prompts = [(Prompt.bare(words), Position.LAST_SUBJECT, False)]
        if choice.side == "both":
            prompts.append(
                (Prompt.bare(words), choice.retain_positions & ~Position.LAST_SUBJECT, True)
            )
            prompts += [
                (p, choice.retain_positions, True) for p in _contexts(words, kind, targets, choice)
            ]
        for prompt, positions, context in prompts:
            if not positions:
                continue
            span = locate(prompt, text.token_ids, LENGTH)
            for row in _STREAM.rows(positions, span):
                if row_key(span, row) not in taken:
                    taken.add(row_key(span, row))
                    wanted.append((group, prompt.text, row, context))
    values = _gather(text, [(prompt, row) for _, prompt, row, _ in wanted])
    groups, flags = tuple(group for group, *_ in wanted), tuple(flag for *_, flag in wanted)
    return Rows(values, groups, tuple(words for words, _ in names), flags)


def retained_names(targets: Sequence[Target]) -> Iterable[tuple[str, str]]:
    """(words, kind) of everything that should stay: painters, generic words, subjects, plain
    prompts.
    """
    erased = {target.words for target in targets}
    yield from ((painter.name, "painter") for painter in PAINTERS if painter.name not in erased)
    yield from ((words, "painter") for words in GENERIC)
    yield from ((subject, "subject") for subject in SUBJECTS if subject not in erased)
    prompts = (
        t.format(subject=s) for t in PLAIN_TEMPLATES[:3] for s in SUBJECTS[::3] if s not in erased
    )
    yield from ((prompt, "prompt") for prompt in prompts)
    if not any(target.kind == "night" for target in targets):
        yield from (
            (f"a {SUBJECTS[5]} {phrase}", "prompt") for phrase in (NIGHT_WORD, *NIGHT_PHRASES[:2])
        )


def _contexts(
    words: str, kind: str, targets: Sequence[Target], choice: RowChoice
) -> Iterable[Prompt]:
    """A retained name in templates whose other hole never holds something erased."""
    if kind == "prompt":
        return
    templates = TEMPLATES if kind == "painter" else PLAIN_TEMPLATES + TEMPLATES
    erased = {target.words for target in targets}
    for i, template in enumerate(templates[: choice.retain_templates]):
        for j in range(choice.retain_fillers if _other_hole(template, kind) else 1):
            others = _others(kind, template, 1 + i + j * 4, None, erased)
            yield filled(template, kind, words, **others)


def _other_hole(template: str, kind: str) -> bool:
    return any("{" + hole + "}" in template for hole in ("subject", "painter") if hole != kind)


def _others(
    kind: str, template: str, turn: int, target: Target | None, erased: Iterable[str] = ()
) -> dict[str, str]:
    """What fills the other hole (a painter never in training with the subject is as good as
    any).
    """
    barred = {target.words} if target else set(erased)
    subjects = [subject for subject in SUBJECTS if subject not in barred]
    painters = [painter.name for painter in PAINTERS if painter.name not in barred]
    chosen = {"subject": subjects[turn % len(subjects)], "painter": painters[turn % len(painters)]}
    return {
        hole: words
        for hole, words in chosen.items()
        if hole != kind and "{" + hole + "}" in template
    }


def _gather(text: Text, places: Sequence[tuple[str, int]]) -> Tensor:
    """The rows at (prompt, row), `m x d`."""
    texts = list(dict.fromkeys(prompt for prompt, _ in places))
    known = dict(zip(texts, text.rows(texts), strict=True))
    return torch.stack([known[prompt][row] for prompt, row in places])
