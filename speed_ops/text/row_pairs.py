"""Target rows and, one to one, the anchor rows that they should become."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from ..errors import InputError
from ..rows import Rows
from .cached_encoder import CachedEncoder
from .encoder import Progress, RowRequest, TextEncoder
from .kinds import BARE, Template, kind_of
from .phrases import Concept
from .plan import RowPlan
from .streams import Stream, StreamKey
from .tokens import Position, TokenSpan


@dataclass(frozen=True)
class RowPair:
    """Rows of one target prompt and of its anchor prompt."""

    target: RowRequest
    anchor: RowRequest
    """As many rows as the target's, each at the same position of the same template."""
    group: int
    """Index of the concept."""
    in_context: tuple[bool, ...]
    """For each row: False for the rows by which the paper represents the bare name."""


def concept_pairs(
    encoder: TextEncoder,
    concept: Concept,
    group: int,
    templates: Sequence[Template],
    plan: RowPlan,
    taken: set[StreamKey],
) -> Iterator[RowPair]:
    """Pairs for the target and each alias in each template.

    A causal encoder gives a name at the start of a prompt the row of the bare name, whatever follows. Such a row is
    taken once: `taken` holds the rows given so far and grows. Passing the solve's set on to the probes leaves them with
    rows that the solve never saw.
    """
    for phrase in concept.phrases:
        for template in templates:
            pair = _pair(encoder, concept, phrase, group, template, plan, taken)
            if pair.target.rows:
                yield pair


def read_pairs(
    reader: CachedEncoder,
    pairs: Sequence[RowPair],
    names: Sequence[str],
    anchor_names: Sequence[str],
    stage: str,
    progress: Progress | None,
) -> tuple[Rows, Rows]:
    """The pairs' embeddings: targets and, row by row, anchors, in the same groups."""
    blocks = reader.rows([pair.target for pair in pairs] + [pair.anchor for pair in pairs], stage, progress)
    groups = tuple(pair.group for pair in pairs for _ in pair.target.rows)
    context = tuple(flag for pair in pairs for flag in pair.in_context)
    nothing = torch.empty(0, reader.encoder.width)
    targets, anchors = (torch.cat([nothing, *part]) for part in (blocks[: len(pairs)], blocks[len(pairs) :]))
    return Rows(targets, groups, tuple(names), context), Rows(anchors, groups, tuple(anchor_names), context)


def paired_rows(
    stream: Stream, span: TokenSpan, anchor: TokenSpan, positions: Position, empty_is_start: bool = False
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Rows of one stream in a prompt and, at the same positions, in its anchor prompt.

    An empty anchor prompt has no subject token: its start token, or the row at the target's place, stands in.
    """
    rows, anchor_rows = stream.rows(positions, span), stream.rows(positions, anchor)
    if not anchor.ids and positions & Position.LAST_SUBJECT and not positions & Position.ALL:
        own = stream.first if empty_is_start and stream.start_token else rows[0]
        anchor_rows = (own, *anchor_rows[1:])
    return rows, anchor_rows


def _pair(
    encoder: TextEncoder,
    concept: Concept,
    phrase: str,
    group: int,
    template: Template,
    plan: RowPlan,
    taken: set[StreamKey],
) -> RowPair:
    positions = _positions(concept, template, plan)
    prompt, anchor_prompt = template.fill(phrase), template.fill(concept.anchor)
    bare = kind_of(concept.kind).bare_rows
    kept: list[tuple[int, int, bool]] = []
    for stream in encoder.streams:
        span, anchor_span = stream.locate(prompt), stream.locate(anchor_prompt)
        _refuse_unreadable(concept, phrase, span, anchor_span)
        rows, anchor_rows = paired_rows(stream, span, anchor_span, positions, plan.empty_anchor == "start")
        flags = [template is not BARE or flag not in bare for flag in _flag_of_each_row(positions, len(rows))]
        for row, other, flag in zip(rows, anchor_rows, flags, strict=True):
            if _is_new(stream.key(span, row), stream.key(anchor_span, other), taken):
                kept.append((row, other, flag))
    return RowPair(
        RowRequest(prompt.text, tuple(row for row, _, _ in kept)),
        RowRequest(anchor_prompt.text, tuple(other for _, other, _ in kept)),
        group,
        tuple(flag for _, _, flag in kept),
    )


def _positions(concept: Concept, template: Template, plan: RowPlan) -> Position:
    """The kind's own rows of the bare name, and the plan's rows in context."""
    own = kind_of(concept.kind).bare_rows
    if template is not BARE:
        return plan.positions
    return own if plan.rows == "bare" or own & Position.ALL else own | plan.positions


def _is_new(key: StreamKey, anchor_key: StreamKey, taken: set[StreamKey]) -> bool:
    """Whether there is something to edit at a row, and nothing has been said about it yet."""
    if key == anchor_key or key in taken:
        return False
    taken.add(key)
    return True


def _refuse_unreadable(concept: Concept, phrase: str, span: TokenSpan, anchor_span: TokenSpan) -> None:
    if span.subject == 0:
        raise InputError(f"{concept.where}: the text encoder makes no token of '{phrase}'; write the name otherwise.")
    if span.ids == anchor_span.ids:
        raise InputError(
            f"{concept.where}: '{phrase}' and '{concept.anchor}' read the same to the text encoder; "
            "choose another anchor."
        )


def _flag_of_each_row(positions: Position, count: int) -> list[Position]:
    if positions & Position.ALL:
        return [Position.ALL] * count
    return [flag for flag in Position if flag & positions]
