"""Ask a model for pictures and let the judge say what they show, split by what training had
seen.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .judge import Judge
from .prompts import HELD_OUT_TEMPLATES, PLAIN_TEMPLATES, TEMPLATES, Prompt, sentence
from .world import GENERIC, HELD_OUT_PAIRS, NIGHT_PHRASES, PAINTERS, PLAIN, SCENES, STYLES, SUBJECTS

Draw = Callable[[list[str]], Tensor]
"""Prompts to pictures (n, 3, 128, 128)."""


@dataclass(frozen=True)
class Score:
    """Shares of pictures whose style, subject and night are what the prompt means, and their
    number.
    """

    style: float
    subject: float
    night: float
    count: int

    def line(self) -> str:
        return (
            f"style {self.style:6.1%}  subject {self.subject:6.1%}  night {self.night:6.1%} "
            f" ({self.count} pictures)"
        )


def _pairs(held_out: bool) -> list[tuple[str, str]]:
    every = itertools.product(SUBJECTS, (painter.name for painter in PAINTERS))
    return [pair for pair in every if (pair in HELD_OUT_PAIRS) == held_out]


def splits(count: int, seed: int = 0) -> dict[str, list[Prompt]]:
    """`count` prompts for each kind of question."""
    rng = np.random.default_rng(seed)

    def pick(options: list[tuple[str, str]] | list[str] | tuple[str, ...]) -> list:
        order = np.resize(rng.permutation(len(options)), count)
        return [options[i] for i in order]

    def styled(
        templates: tuple[str, ...], held_out: bool, ending: tuple[str, ...] = ()
    ) -> list[Prompt]:
        ends = pick(ending) if ending else [None] * count
        chosen = zip(pick(templates), pick(_pairs(held_out)), ends, strict=True)
        return [
            sentence(template, subject, style, ending=end)
            for template, (subject, style), end in chosen
        ]

    aliases = [(painter.name, painter.alias) for painter in PAINTERS if painter.alias]
    return {
        "seen": styled(TEMPLATES, False),
        "new templates": styled(HELD_OUT_TEMPLATES, False),
        "new pairs": styled(TEMPLATES, True),
        "night": styled(TEMPLATES, False, NIGHT_PHRASES),
        "aliases": [
            sentence(t, s, n, a)
            for t, s, (n, a) in zip(pick(TEMPLATES), pick(SUBJECTS), pick(aliases), strict=True)
        ],
        "generic": [
            sentence(t, s, PLAIN.name, g)
            for t, s, g in zip(pick(TEMPLATES), pick(SUBJECTS), pick(GENERIC), strict=True)
        ],
        "plain": [
            sentence(t, s, PLAIN.name)
            for t, s in zip(pick(PLAIN_TEMPLATES), pick(SUBJECTS), strict=True)
        ],
    }


def score(judge: Judge, prompts: list[Prompt], pictures: Tensor) -> Score:
    """Judge pictures against the prompts they were drawn for."""
    verdict = judge.judge(pictures)
    style = verdict.style == torch.tensor([STYLES.index(prompt.style) for prompt in prompts])
    night = verdict.night == torch.tensor([int(prompt.night) for prompt in prompts])
    subject = verdict.subject == torch.tensor([SCENES.index(prompt.subject) for prompt in prompts])
    return Score(*(part.float().mean().item() for part in (style, subject, night)), len(prompts))


@dataclass(frozen=True)
class Rounding:
    """What storing the U-Net in 8 bits costs, against 16: the same prompts and noise."""

    sixteen: Score
    eight: Score
    otherwise: float
    """Share of pictures in which the judge sees another style, subject or time of day than in those
    of 16 bits.
    """
    change: float
    """Mean absolute change of colours, as a share of the whole range."""


def rounding(judge: Judge, prompts: list[Prompt], sixteen: Tensor, eight: Tensor) -> Rounding:
    """Compares the pictures (n, 3, 128, 128) that both draw."""
    seen = [judge.judge(pictures) for pictures in (sixteen, eight)]
    differs = torch.stack(
        [getattr(seen[0], head) != getattr(seen[1], head) for head in ("style", "subject", "night")]
    )
    scores = (score(judge, prompts, pictures) for pictures in (sixteen, eight))
    return Rounding(
        *scores, differs.any(dim=0).float().mean().item(), (sixteen - eight).abs().mean().item() / 2
    )


def evaluate(draw: Draw, judge: Judge, questions: Mapping[str, list[Prompt]]) -> dict[str, Score]:
    return {
        name: score(judge, prompts, draw([p.text for p in prompts]))
        for name, prompts in questions.items()
    }
