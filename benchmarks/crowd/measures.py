"""From verdicts to numbers: shares, their intervals, and differences on the same pictures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from speed_erase.speed_ops.evaluate import measures as evaluate

from .judge import Verdict
from .tasks import Question, Task
from .world import DEPICTED, STYLES

DRAWS = 2000
"""Resamplings of a bootstrap: its 95 % limits are good to about a tenth of their distance."""


def recognized(questions: Sequence[Question], verdict: Verdict) -> list[bool]:
    """For each picture whether the judge sees what the prompt names, by the question's own head."""
    flags = []
    for i, question in enumerate(questions):
        if question.head == "style":
            flags.append(STYLES[int(verdict.style[i])] == question.prompt.style)
        elif question.head == "subject":
            flags.append(DEPICTED[int(verdict.subject[i])] == question.prompt.subject)
        else:
            flags.append(bool(verdict.night[i]) == question.prompt.night)
    return flags


def harmonic(acc_e: float, acc_r: float) -> float:
    """H_o of the paper: harmonic mean of (1 - Acc_e) and Acc_r, 0 if either is 0."""
    return float(_h_o(np.array(acc_e), np.array(acc_r)))


def wilson(share: float, count: int) -> tuple[float, float]:
    """95 % interval of a share of `count` pictures."""
    figure = evaluate.share(round(share * count), count)
    assert figure is not None and figure.low is not None and figure.high is not None
    return figure.low, figure.high


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Rank correlation, ties sharing their mean rank; not a number where one side is constant."""
    ranks = []
    for values in (first, second):
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        ranks.append((np.cumsum(counts) - (counts - 1) / 2)[inverse])
    if min(np.std(values) for values in ranks) == 0:
        return float("nan")
    return float(np.corrcoef(*ranks)[0, 1])


def scores(task: Task, questions: Sequence[Question], verdict: Verdict) -> dict[str, Any]:
    """Acc_e, Acc_r, H_o, near and far, by split and by concept; and the flags they come from."""
    right = recognized(questions, verdict)
    roles = [question.role for question in questions]
    erased, kept = ([i for i, role in enumerate(roles) if role == r] for r in ("erased", "kept"))
    places = task.neighbors()
    found: dict[str, Any] = {"acc_e": share(right, erased), "acc_r": share(right, kept)}
    found["h_o"] = harmonic(found["acc_e"], found["acc_r"])
    for where in ("near", "far"):
        own = [i for i in kept if places.get(questions[i].concept) == where]
        found[where], found[f"{where}_count"] = share(right, own), len(own)
    found["counts"] = Counter(roles)
    found["splits"] = shares_by(right, [question.split for question in questions])
    concepts = [questions[i].concept for i in erased]
    found["by_concept"] = shares_by([right[i] for i in erased], concepts)
    found["concept_counts"] = Counter(questions[i].concept for i in erased)
    found["right"] = "".join("01"[flag] for flag in right)
    found["roles"] = "".join(role[0] for role in roles)
    return found


def change(questions: Sequence[Question], before: Tensor, after: Tensor) -> dict[str, float]:
    """Mean absolute change of colors on the same noise, in shares of the whole range, by role."""
    moved = (after.float() - before.float()).abs().mean(dim=(1, 2, 3)) / 255
    roles = np.array([question.role for question in questions])
    groups = {role: torch.from_numpy(roles == role) for role in dict.fromkeys(roles.tolist())}
    return {role: float(moved[flags].mean()) for role, flags in groups.items()}


def frechet_kept(questions: Sequence[Question], before: Tensor, after: Tensor) -> float:
    """Frechet distance of the kept pictures' features (n x f) before and after."""
    kept = [i for i, question in enumerate(questions) if question.role == "kept"]
    figure = evaluate.frechet(*(features[kept].double().numpy() for features in (before, after)))
    assert figure is not None
    return figure.value


def share(flags: Sequence[bool], places: Sequence[int]) -> float | None:
    return sum(flags[i] for i in places) / len(places) if places else None


def shares_by(flags: Sequence[bool], names: Sequence[str]) -> dict[str, float]:
    """The share of each name's flags that are set."""
    places: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        places.setdefault(name, []).append(i)
    return {name: sum(flags[i] for i in own) / len(own) for name, own in places.items()}


def _flags(result: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Whether each erased and each kept picture was recognized."""
    right = np.array([mark == "1" for mark in result["right"]])
    roles = np.array(list(result["roles"]))
    return right[roles == "e"], right[roles == "k"]


def _h_o(erased: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """H_o of each resampling, from shares (draws,)."""
    gone = 1 - erased
    total = gone + kept
    return np.where(total > 0, 2 * gone * kept / np.where(total > 0, total, 1), 0.0)


def h_o_interval(result: dict, rival: dict | None = None) -> tuple[float, float]:
    """95 % limits of H_o, or of its lead over a rival on the same questions: a paired bootstrap."""
    rng = np.random.default_rng(0)
    erased, kept = _flags(result)
    picks = [rng.integers(len(part), size=(DRAWS, len(part))) for part in (erased, kept)]

    def drawn(flags: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        return _h_o(*(part[pick].mean(axis=1) for part, pick in zip(flags, picks, strict=True)))

    values = drawn((erased, kept))
    if rival is not None:
        values = values - drawn(_flags(rival))
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)
