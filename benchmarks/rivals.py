"""Rivals as their authors release them: which rows, weights, layers and rounds. Our own code.

| rival | rows of a concept | rows of a kept name | layers |
| --- | --- | --- | --- |
| UCE 2023 | from the last subject token to the last padding | all | K and V |
| RECE | all, after UCE 2023 | all | K and V |
| UCE 2025 | the last subject token | the last subject token | K and V |
| OCE | the last subject token | the last subject token, and the captions' second moment | V |
| Double Projections | every content token, in turn | every content token | the entry layer |

`tests/benchmarks/test_rivals.py` compares each with the released function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]
"""{layer key: `o x d`}."""
Pair = tuple[str, str]
"""A concept, and what it becomes."""
EXPANDED = {
    "style": ("painting by {}", "art by {}", "artwork by {}", "picture by {}", "style of {}"),
    "object": ("image of {}", "photo of {}", "portrait of {}", "picture of {}", "painting of {}"),
}
"""The prompts that UCE and OCE add to a name if asked (`add_prompts`, `expand_prompts`)."""
NOTHING = 1e-6
"""Singular values up to this are zero to Double Projections."""


@dataclass(frozen=True)
class Reader:
    """A text encoder as the released scripts use it."""

    rows: Callable[[str], Tensor]
    """All rows of a prompt, `L x d`."""
    last: Callable[[str], int]
    """Index of the last subject token: the one before the end token."""
    start: int = 1
    """Number of start tokens: 1 for CLIP, 0 for T5."""

    def subject(self, text: str) -> Tensor:
        """`1 x d`: the row of the last subject token."""
        return self.rows(text)[self.last(text)][None]

    def content(self, text: str) -> Tensor:
        """`n x d`: the rows of all content tokens."""
        return self.rows(text)[self.start : self.last(text) + 1]


def expanded(pairs: Sequence[Pair], kind: str) -> list[Pair]:
    """Each pair alone, then in the prompts that the released scripts add."""
    prompts = [(t.format(a), t.format(b)) for a, b in pairs for t in EXPANDED[kind]]
    return [*pairs, *prompts]


def uce_2023(
    weights: Weights,
    reader: Reader,
    pairs: Sequence[Pair],
    kept: Sequence[str],
    *,
    erase: float = 1.0,
    preserve: float | None = None,
    ridge: float = 0.5,
) -> dict[str, Tensor]:
    """UCE as released with the paper: K and V, and the empty prompt is always kept.

    Args:
        weights: K and V layers.
        reader: The text encoder.
        pairs: Concepts and replacements, with the added prompts if they are wanted.
        kept: Protected names.
        erase: Weight of the concepts.
        preserve: Weight of the kept names; None: one over their number, but at least 0.1.
        ridge: Weight of the old matrix.
    """
    sides = [_tails(reader, *pair) for pair in pairs]
    names = ["", *kept]
    moment = _moment(reader.rows(name) for name in names)
    preserve = max(0.1, 1 / len(names)) if preserve is None else preserve
    targets, anchors = (torch.cat(side) for side in zip(*sides, strict=True))
    return {
        key: solved(weight, targets, anchors, moment, erase, preserve, ridge)
        for key, weight in weights.items()
    }


def uce_2025(
    weights: Weights,
    reader: Reader,
    pairs: Sequence[Pair],
    kept: Sequence[str],
    *,
    erase: float = 1.0,
    preserve: float = 1.0,
    ridge: float = 0.5,
) -> dict[str, Tensor]:
    """UCE as rewritten in 2025: one row per name; nothing but the given names is kept.

    Args: as `uce_2023`.
    """
    targets, anchors = (
        torch.cat([reader.subject(text) for text in side]) for side in zip(*pairs, strict=True)
    )
    moment = _moment((reader.subject(name) for name in kept), targets)
    return {
        key: solved(weight, targets, anchors, moment, erase, preserve, ridge)
        for key, weight in weights.items()
    }


def rece(
    weights: Weights,
    reader: Reader,
    pairs: Sequence[Pair],
    kept: Sequence[str],
    *,
    rounds: int = 1,
    reg: float = 1e-3,
    erase: float = 1.0,
    preserve: float = 0.1,
    ridge: float = 0.1,
) -> dict[str, Tensor]:
    """RECE: UCE 2023, then rounds that find all rows which still mean the concept and erase them.

    Each round starts from the weights of the one before. `reg` is absolute.

    Args:
        weights: K and V layers.
        reader: The text encoder.
        pairs: Concepts and replacements.
        kept: Protected names.
        rounds: The released scripts take 1 for styles and objects, 3 for nudity.
        reg: 1e-3 for styles and hard objects, 1e-1 for easy objects and nudity.
        erase: Weight of the rows that are found.
        preserve: Weight of the kept names in a round.
        ridge: Weight of the old matrix in a round.
    """
    edited = uce_2023(weights, reader, pairs, kept)
    targets, anchors = (
        torch.cat([reader.rows(text) for text in side]) for side in zip(*pairs, strict=True)
    )
    moment = _moment(reader.rows(name) for name in ("", *kept))
    eye = torch.eye(targets.shape[1], dtype=targets.dtype)
    for _ in range(rounds):
        now = sum((v.T @ v for v in edited.values()), start=reg * eye)
        before = sum((v.T @ weights[key] for key, v in edited.items()), start=0 * eye)
        leaking = targets @ torch.linalg.solve(now, before).T
        edited = {
            key: solved(weight, leaking, anchors, moment, erase, preserve, ridge)
            for key, weight in edited.items()
        }
    return edited


def oce(
    weights: Weights,
    reader: Reader,
    pairs: Sequence[Pair],
    kept: Sequence[str],
    captions: Tensor,
    *,
    erase: float,
    keep: float,
    broad: float,
    ridge: float = 10.0,
) -> dict[str, Tensor]:
    """OCE: W* = Q W with Q orthogonal (Procrustes).

    Q maximizes tr(Q' M) with M = -erase E E'(I - G G') + keep W C0 C0' W' + broad W K W' + ridge W
    W'. E and G are orthonormal bases of the concepts' and the replacements' outputs. A replacement
    that several concepts share counts once: the released code hands its copies to a QR
    decomposition, which completes the basis with directions of rounding noise. Rounding also
    decides the sign of the determinant, and with it one column of Q, in layers with more outputs
    than inputs.

    Args:
        weights: V layers.
        reader: The text encoder.
        pairs: Concepts and replacements, with the added prompts if they are wanted.
        kept: Protected names.
        captions: K, `d x d`, the second moment of the rows of captions (`second_moment`).
        erase: Weight of the first term.
        keep: Weight of the second.
        broad: Weight of the third.
        ridge: Weight of the last.
    """
    targets, anchors = (
        torch.cat([reader.subject(text) for text in dict.fromkeys(side)])
        for side in zip(*pairs, strict=True)
    )
    prior = keep * _moment((reader.subject(name) for name in kept), targets)
    prior = prior + broad * captions
    prior.diagonal().add_(ridge)
    edited = {}
    for key, weight in weights.items():
        gone, guide = (_basis(rows @ weight.T) for rows in (targets, anchors))
        away = gone @ gone.T
        total = weight @ prior @ weight.T - erase * (away - away @ guide @ guide.T)
        left, _, right = torch.linalg.svd(total)
        rotation = left @ right
        if torch.det(rotation) < 0:
            rotation[:, -1] *= -1
        edited[key] = rotation @ weight
    return edited


def second_moment(reader: Reader, captions: Iterable[str]) -> Tensor:
    """OCE's K: mean of c c' over all rows of captions, without padding."""
    total, count = torch.zeros(()), 0
    for caption in captions:
        rows = reader.rows(caption)[: reader.last(caption) + 2]
        total, count = total + rows.T @ rows, count + len(rows)
    return total / count


def double_projections(
    weights: Weights, reader: Reader, pairs: Sequence[Pair], kept: Sequence[str]
) -> dict[str, Tensor]:
    """Double Projections: each content token goes to its projection onto the replacements' span,
    by an update that leaves the outputs of all kept rows as they are.

    Args:
        weights: The layer through which text enters; other layers on models without one.
        reader: The text encoder.
        pairs: Concepts and replacements; all replacements make one span.
        kept: Protected names.
    """
    anchors = dict.fromkeys(anchor for _, anchor in pairs if anchor.strip())
    safe = torch.cat([reader.content(anchor) for anchor in anchors])
    free = None
    if kept:
        rows = torch.cat([reader.content(name) for name in kept])
        _, sizes, basis = torch.linalg.svd(rows, full_matrices=True)
        free = basis[int((sizes > NOTHING).sum()) :]
    edited = dict(weights)
    for row in torch.cat([reader.content(target) for target, _ in pairs]):
        goal = safe[0] if len(safe) == 1 else torch.linalg.pinv(safe @ safe.T) @ (safe @ row) @ safe
        along = row if free is None else free.T @ (free @ row)
        if (size := along @ along) < 1e-10:
            continue
        for key, weight in edited.items():
            edited[key] = weight + torch.outer(weight @ (goal - row), along) / size
    return edited


def _tails(reader: Reader, target: str, anchor: str) -> tuple[Tensor, Tensor]:
    """The rows from the last subject token on, of both prompts; as many of each."""
    starts = reader.last(target), reader.last(anchor or " ")
    rows = reader.rows(target), reader.rows(anchor or " ")
    count = len(rows[0]) - max(starts)
    first, second = (part[start : start + count] for part, start in zip(rows, starts, strict=True))
    return first, second


def _moment(rows: Iterable[Tensor], like: Tensor | None = None) -> Tensor:
    """`d x d`: sum of c c' over all rows."""
    total = torch.zeros(()) if like is None else like.new_zeros(like.shape[1], like.shape[1])
    for part in rows:
        total = total + part.T @ part
    return total


def solved(
    weight: Tensor,
    targets: Tensor,
    anchors: Tensor,
    kept: Tensor,
    erase: float,
    preserve: float,
    ridge: float,
) -> Tensor:
    """W (ridge I + erase C* C' + preserve K)(ridge I + erase C C' + preserve K)^-1.

    Args:
        weight: W.
        targets: C, one row each.
        anchors: C*, row by row what they become.
        kept: K, `d x d`.
        erase: Weight of the rows.
        preserve: Weight of K.
        ridge: Weight of the old matrix.
    """
    shared = preserve * kept
    shared.diagonal().add_(ridge)
    goal = weight @ (shared + erase * anchors.T @ targets)
    return torch.linalg.solve(shared + erase * targets.T @ targets, goal, left=False)


def _basis(outputs: Tensor) -> Tensor:
    """`o x q`: orthonormal basis of output rows, each at unit length first."""
    return torch.linalg.qr(torch.nn.functional.normalize(outputs, dim=1).T).Q
