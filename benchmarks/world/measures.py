"""From pictures to numbers: what the judge sees, how far pictures moved, and what the weights alone
would have said.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from speed_erase.speed_ops.certificate.measure import left_of
from speed_erase.speed_ops.text.tokens import locate

from .judge import Judge
from .rows import PromptPair, Target, Text, target_pairs, unseen_templates
from .tasks import Question, neighbours
from .text_encoder import LENGTH
from .world import NIGHT_WORD, PLAIN, SCENES, STYLES


def harmonic(acc_e: float, acc_r: float) -> float:
    """H_o of the paper: harmonic mean of (1 - Acc_e) and Acc_r, 0 if either is 0."""
    gone = 1 - acc_e
    return 2 / (1 / gone + 1 / acc_r) if gone > 0 and acc_r > 0 else 0.0


def recognised(
    questions: Sequence[Any],
    verdict: Any,
    styles: Sequence[str] = STYLES,
    subjects: Sequence[str] = SCENES,
) -> list[bool]:
    """For each picture whether the judge sees what the prompt names, by the question's own head.

    `styles` and `subjects` are the judge's, in its order."""
    found = []
    for i, question in enumerate(questions):
        if question.head == "style":
            found.append(styles[int(verdict.style[i])] == question.prompt.style)
        elif question.head == "subject":
            found.append(subjects[int(verdict.subject[i])] == question.prompt.subject)
        else:
            found.append(bool(verdict.night[i]) == question.prompt.night)
    return found


def judged(
    judge: Judge, questions: Sequence[Question], pictures: Tensor, before: Tensor | None
) -> dict[str, Any]:
    """Acc_e, Acc_r, H_o, the same by split, what the erased became, composites, and change against
    `before`.
    """
    verdict = judge.judge(pictures)
    right = recognised(questions, verdict)
    erased = _where(questions, role="erased")
    kept = _where(questions, role="kept")
    acc_e, acc_r = _share(right, erased), _share(right, kept)
    splits = {
        split: _share(right, _where(questions, split=split))
        for split in dict.fromkeys(q.split for q in questions)
    }
    scores: dict[str, Any] = {
        "acc_e": acc_e,
        "acc_r": acc_r,
        "h_o": harmonic(acc_e, acc_r),
        "splits": splits,
    }
    scores["counts"] = {"erased": len(erased), "kept": len(kept)}
    scores["by_concept"] = {
        name: _share(right, [i for i in erased if concept_of(questions[i]) == name])
        for name in dict.fromkeys(concept_of(questions[i]) for i in erased)
    }
    scores["became"] = Counter(STYLES[int(verdict.style[i])] for i in erased).most_common(4)
    subjects = [
        SCENES[int(verdict.subject[i])] == questions[i].prompt.subject
        for i in range(len(questions))
    ]
    scores["subject_of_erased"], scores["subject_of_kept"] = (
        _share(subjects, erased),
        _share(subjects, kept),
    )
    scores |= _survival(questions, right)
    if before is not None:
        scores["change"] = image_change(questions, before, pictures)
        old = judge.judge(before)
        scores["frechet_kept"] = frechet(old.features[kept], verdict.features[kept])
        scores["subject_same"] = _share((old.subject == verdict.subject).tolist(), erased)
    return scores


def concept_of(question: Question) -> str:
    """The name under which the certificate lists what this question asks for."""
    if question.head == "night":
        return NIGHT_WORD
    return question.prompt.subject if question.head == "subject" else question.prompt.style


def image_change(questions: Sequence[Question], before: Tensor, after: Tensor) -> dict[str, float]:
    """Mean absolute change of colours (0 to 2) on paired seeds, by kind of prompt.

    `far` are painters that share neither palette nor texture with anything erased: their change is
    the noise floor.
    """
    moved = (
        (after[:, :3].clamp(-1, 1) - before[:, :3].clamp(-1, 1)).abs().mean(dim=(1, 2, 3)).tolist()
    )
    names = {q.prompt.style for q in questions if q.role == "erased"}
    near = set().union(*(neighbours(name) for name in names if name != PLAIN.name), set())
    groups: dict[str, list[float]] = {"erased": [], "near": [], "far": [], "plain": []}
    for question, amount in zip(questions, moved, strict=True):
        if question.role == "erased":
            groups["erased"].append(amount)
        elif question.role == "kept":
            style = question.prompt.style
            groups["plain" if style == PLAIN.name else "near" if style in near else "far"].append(
                amount
            )
    return {name: float(np.mean(values)) for name, values in groups.items() if values}


def frechet(first: Tensor, second: Tensor) -> float:
    """Frechet distance of two sets of features (n, f) as Gaussians.

    The trace of the root of the product of both covariances is the sum of the singular values of
    one centred set times the other: exact, and cheap where there are more features than pictures.
    """
    a, b = first.double(), second.double()
    means = (a.mean(0) - b.mean(0)).square().sum()
    a, b = ((part - part.mean(0)) / (len(part) - 1) ** 0.5 for part in (a, b))
    return float(
        means + a.square().sum() + b.square().sum() - 2 * torch.linalg.svdvals(a @ b.T).sum()
    )


def value_measures(
    text: Text,
    targets: Sequence[Target],
    questions: Sequence[Question],
    before: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
) -> dict[str, float]:
    """What the weights say without a picture: residual of the erased and drift of the kept, over
    ALL rows of prompts.

    Residual: as in the certificate, 1 untouched, 0 turned into the anchor; from the end of the name
    to the last padding row, in templates that no solve sees. Drift: relative change of the outputs
    of every row of the kept prompts.
    """
    old, new = _unseen_rows(text, targets)
    kept = text.rows(list(dict.fromkeys(q.prompt.text for q in questions if q.role == "kept"))[:40])
    left, moved, empty = [], [], []
    for key, weight in before.items():
        delta = (after[key] - weight).float()
        wanted = (new - old) @ weight.float().T
        remains, _ = left_of(wanted, old @ delta.T - wanted)
        left.append(float(remains.sum().sqrt() / wanted.norm()))
        size, change = (kept @ weight.float().T).norm(dim=-1), (kept @ delta.T).norm(dim=-1)
        moved.append((change.square().sum(1) / size.square().sum(1)).sqrt())
        nothing = text.rows([""])[0]
        empty.append(float((nothing @ delta.T).norm() / (nothing @ weight.float().T).norm()))
    drift = torch.stack(moved).median(dim=0).values
    return {
        "residual": float(np.median(left)),
        "drift": float(drift.mean()),
        "drift_worst": float(drift.max()),
        "empty_drift": max(empty),
    }


def certificate_numbers(certificate: Any) -> dict[str, Any]:
    """What the engine's certificate says of the concepts (median over them) and of the names kept
    in context.
    """
    left = [
        concept.probe_median for concept in certificate.concepts if concept.probe_median is not None
    ]
    solved = [concept.solved_median for concept in certificate.concepts]
    numbers: dict[str, Any] = {
        "probe": float(np.median(left)) if left else None,
        "probe_worst": max(left) if left else None,
        "solved": float(np.median(solved)),
        "verdicts": dict(Counter(concept.verdict for concept in certificate.concepts)),
        "by_concept": {c.name: [c.verdict, c.probe_median] for c in certificate.concepts},
        "room": min(layer.room for layer in certificate.layers),
        "rank": max(layer.rank for layer in certificate.layers),
        "change": max(layer.change for layer in certificate.layers),
        "energy_lost": max(concept.energy_lost for concept in certificate.concepts),
        "rounds": [[r.number, r.mean_leak, r.worst_leak] for r in certificate.rounds],
    }
    for drift in certificate.drift:
        numbers[f"drift_{drift.group}_{drift.where}"] = [drift.median, drift.p95, drift.maximum]
    return numbers


def wilson(share: float, count: int) -> tuple[float, float]:
    """95 % interval of a share of `count` pictures."""
    z = 1.96
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = (
        z
        * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
        / (1 + z * z / count)
    )
    return centre - half, centre + half


def _unseen_rows(text: Text, targets: Sequence[Target]) -> tuple[Tensor, Tensor]:
    """Rows from the end of the name on, of target and anchor prompts in unseen templates, place by
    place.
    """
    old, new = [], []
    for target in targets:
        pairs: list[PromptPair] = target_pairs(
            target, unseen_templates(target.kind, 0)[:6], 1, offset=6
        )
        for pair in pairs:
            spans = [
                locate(prompt, text.token_ids, LENGTH) for prompt in (pair.target, pair.anchor)
            ]
            length = LENGTH - max(span.subject for span in spans)
            rows = text.rows([pair.target.text, pair.anchor.text])
            old.append(rows[0, spans[0].subject :][:length])
            new.append(rows[1, spans[1].subject :][:length])
    return torch.cat(old), torch.cat(new)


def _survival(questions: Sequence[Question], right: Sequence[bool]) -> dict[str, float]:
    """Accuracy of the kept painters that share a palette or a texture with an erased one, and of
    the others.
    """
    names = {q.prompt.style for q in questions if q.role == "erased" and q.head == "style"}
    near = set().union(*(neighbours(name) for name in names), set())
    kept = [i for i in _where(questions, role="kept") if questions[i].prompt.style != PLAIN.name]
    close = [i for i in kept if questions[i].prompt.style in near]
    far = [i for i in kept if questions[i].prompt.style not in near]
    shares = {"acc_near": close, "acc_far": far}
    return {name: _share(right, rows) for name, rows in shares.items() if rows}


def _where(questions: Sequence[Question], **wanted: str) -> list[int]:
    return [
        i
        for i, q in enumerate(questions)
        if all(getattr(q, name) == value for name, value in wanted.items())
    ]


def _share(flags: Sequence[bool], rows: Sequence[int]) -> float:
    return sum(flags[i] for i in rows) / len(rows) if rows else float("nan")


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Rank correlation, ties sharing their mean rank."""
    ranks = [_ranks(np.asarray(values, dtype=float)) for values in (first, second)]
    if min(np.std(r) for r in ranks) == 0:
        return float("nan")
    return float(np.corrcoef(*ranks)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[inverse]
