"""Which rows of which prompts to ask an encoder for: targets with their anchors, and the names that must stay.

Target rows come with, one to one, the anchor rows that they should become. Kept names come bare first; contexts are
added to those that are worth it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..concepts.concept_list import Concept
from ..concepts.kinds import BARE, CAPTION, Kind, Prompt, Template, context_kind, kind_of
from ..concepts.names import WordIndex, same_name_key
from ..concepts.retain_set import RetainSet
from ..errors import InputError
from .plan import RowPlan
from .tokens import Position, Stream, StreamKey, TokenSpan


@dataclass(frozen=True)
class RowRequest:
    """Some rows of one prompt."""

    text: str
    rows: tuple[int, ...]
    """Row indices, not necessarily sorted or distinct."""


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


def all_pairs(
    streams: Sequence[Stream],
    concepts: Sequence[Concept],
    templates: Callable[[Kind], Sequence[Template]],
    plan: RowPlan,
    taken: Sequence[set[StreamKey]] | None = None,
) -> list[RowPair]:
    """Pairs of all concepts, each in the templates of its kind; `taken`: for each the rows that it has already."""
    return [
        pair
        for group, concept in enumerate(concepts)
        for pair in concept_pairs(
            streams, concept, group, templates(kind_of(concept.kind)), plan, taken[group] if taken else set()
        )
    ]


def concept_pairs(
    streams: Sequence[Stream],
    concept: Concept,
    group: int,
    templates: Sequence[Template],
    plan: RowPlan,
    taken: set[StreamKey],
) -> Iterator[RowPair]:
    """Pairs for the target and each alias in each template.

    A causal encoder gives a name at the start of a prompt the row of the bare name, whatever follows. Such a row is
    taken once: `taken` holds the rows given so far and grows. Passing the edit's set on to the probes leaves them with
    rows that the edit was not made from.
    """
    for phrase in concept.phrases:
        for template in templates:
            pair = _pair(streams, concept, phrase, group, template, plan, taken)
            if pair.target.rows:
                yield pair


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
    streams: Sequence[Stream],
    concept: Concept,
    phrase: str,
    group: int,
    template: Template,
    plan: RowPlan,
    taken: set[StreamKey],
) -> RowPair:
    positions = _positions(concept, template, plan)
    prompt, anchor_prompt = template.fill(phrase), template.fill(concept.anchor)
    bare = _bare_positions(concept)
    kept: list[tuple[int, int, bool]] = []
    for stream in streams:
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
    own = _bare_positions(concept)
    if template is not BARE:
        return plan.positions
    return own if plan.rows == "bare" or own & Position.ALL else own | plan.positions


def _bare_positions(concept: Concept) -> Position:
    """The rows by which the paper represents a bare name."""
    return Position.ALL if kind_of(concept.kind).whole_prompt else Position.LAST_SUBJECT


def _is_new(key: StreamKey, anchor_key: StreamKey, taken: set[StreamKey]) -> bool:
    """Whether there is something to edit at a row, and nothing has been said about it yet."""
    if key == anchor_key or key in taken:
        return False
    taken.add(key)
    return True


def _refuse_unreadable(concept: Concept, phrase: str, span: TokenSpan, anchor_span: TokenSpan) -> None:
    if span.subject == 0:
        raise InputError(f"{concept.where}: the text encoder cannot read '{phrase}'; spell the name differently.")
    if span.ids == anchor_span.ids:
        raise InputError(
            f"{concept.where}: '{phrase}' and '{concept.anchor}' are the same to the text encoder; "
            "choose another anchor."
        )


def _flag_of_each_row(positions: Position, count: int) -> list[Position]:
    if positions & Position.ALL:
        return [Position.ALL] * count
    return [flag for flag in Position if flag & positions]


@dataclass(frozen=True)
class KeptName:
    """One name that must stay: the rows of the bare name and those in context."""

    name: str
    bare: tuple[RowRequest, ...]
    contexts: tuple[RowRequest, ...] = ()


def usable_names(streams: Sequence[Stream], retain: RetainSet) -> tuple[list[int], list[KeptName], list[str]]:
    """Indices of the names that can be encoded, the last subject rows of each, and the names that cannot.

    A retain list may hold anything, so a name that makes no token, or too many, is set aside and not an error.
    """
    places: list[int] = []
    names: list[KeptName] = []
    unusable: list[str] = []
    for index, name in enumerate(retain.names):
        try:
            usable = all(stream.locate(Prompt.bare(name)).subject for stream in streams)
        except InputError:
            usable = False
        if usable:
            places.append(index)
            names.append(KeptName(name, (_request(streams, Prompt.bare(name), Position.LAST_SUBJECT),)))
        else:
            unusable.append(name)
    return places, names, unusable


def with_contexts(streams: Sequence[Stream], kept: KeptName, kind: str, plan: RowPlan, templates: int) -> KeptName:
    """The same name with its rows in the first templates of its kind; a name too long for a template gets none."""
    prompts: list[tuple[Prompt, Position]] = []
    # The bare name is a prompt too; its subject row is there already.
    after_name = plan.retain_positions & ~Position.LAST_SUBJECT
    if after_name:
        prompts.append((BARE.fill(kept.name), after_name))
    chosen = context_kind(kind)
    if chosen is not CAPTION:
        prompts += [(template.fill(kept.name), plan.retain_positions) for template in chosen.templates[:templates]]
    taken: set[StreamKey] = set()
    _request(streams, Prompt.bare(kept.name), Position.LAST_SUBJECT, taken)
    try:
        contexts = tuple(_request(streams, prompt, positions, taken) for prompt, positions in prompts)
    except InputError:
        return kept
    return KeptName(kept.name, kept.bare, contexts)


def kept_by_plan(
    streams: Sequence[Stream], concepts: Sequence[Concept], known: Sequence[str], plan: RowPlan
) -> Iterator[KeptName]:
    """What the plan keeps besides the user's names."""
    if plan.rows == "bare":
        if any(kind_of(concept.kind).whole_prompt for concept in concepts):
            # The paper's retain set for implicit concepts: the empty prompt, all rows after the start token.
            yield KeptName("", (_request(streams, Prompt.bare(""), Position.ALL),))
        return
    if not plan.hold_anchors:
        return
    erased = WordIndex(phrase for concept in concepts for phrase in concept.phrases)
    seen = {same_name_key(name) for name in known} | {""}
    for concept in concepts:
        key = same_name_key(concept.anchor)
        if key in seen or erased.match(concept.anchor):
            continue
        seen.add(key)
        bare = _request(streams, Prompt.bare(concept.anchor), Position.LAST_SUBJECT)
        yield with_contexts(streams, KeptName(concept.anchor, (bare,)), concept.kind, plan, plan.templates)
    for kind in dict.fromkeys(concept.kind for concept in concepts):
        for template in kind_of(kind).templates[: plan.templates]:
            plain = template.fill("")
            if same_name_key(plain.text) not in seen and not erased.match(plain.text):
                seen.add(same_name_key(plain.text))
                yield KeptName(plain.text, (), (_request(streams, plain, plan.retain_positions),))


def _request(
    streams: Sequence[Stream], prompt: Prompt, positions: Position, taken: set[StreamKey] | None = None
) -> RowRequest:
    """A prompt's rows in all streams, without those that repeat rows of the prompts in `taken`, which grows."""
    rows: list[int] = []
    for stream in streams:
        span = stream.locate(prompt)
        keys = {row: stream.key(span, row) for row in stream.rows(positions, span)}
        fresh = [row for row in stream.rows(positions, span) if taken is None or keys[row] not in taken]
        if taken is not None:
            taken.update(keys[row] for row in fresh)
        rows += fresh
    return RowRequest(prompt.text, tuple(rows))
