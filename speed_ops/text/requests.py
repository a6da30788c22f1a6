"""Which rows of which prompts to ask an encoder for: targets with their anchors, and the names that
must stay.

Target rows come with, one to one, the anchor rows that they should become. Kept names come bare
first; contexts are added to those that are worth it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..errors import InputError
from ..inputs import TOKENS
from .concept_list import Concept
from .kinds import BARE, CAPTION, Kind, Prompt, Template, context_kind, kind_of
from .names import WordIndex, same_name_key
from .plan import RowPlan, judging_prompts
from .retain_set import RetainSet, builtin_retain
from .tokens import MANY, Position, Stream, StreamKey, TokenSpan

CAPTIONS = "scenes"
"""The built-in retain set of plain captions."""


@dataclass(frozen=True)
class RowRequest:
    """Some rows of one prompt."""

    text: str
    rows: tuple[int, ...]
    """Row indices, not necessarily sorted or distinct."""
    text_input: str = TOKENS
    """Which text input of the model reads them; `POOLED` has one row per prompt."""


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


def pairs_for(text_input: str, pairs: Sequence[RowPair]) -> list[RowPair]:
    """The same prompts as one text input of the model reads them."""
    if text_input == TOKENS:
        return list(pairs)
    prompts = {(pair.group, pair.target.text): pair for pair in pairs}
    return [
        RowPair(
            RowRequest(pair.target.text, (0,), text_input),
            RowRequest(pair.anchor.text, (0,), text_input),
            pair.group,
            (all(pair.in_context),),
        )
        for pair in prompts.values()
    ]


def all_pairs(
    streams: Sequence[Stream],
    concepts: Sequence[Concept],
    templates: Callable[[Kind], Sequence[Template]],
    plan: RowPlan,
    taken: Sequence[set[StreamKey]] | None = None,
) -> list[RowPair]:
    """Pairs of all concepts, each in the templates of its kind; `taken`: for each the rows that it
    has already.
    """
    return [
        pair
        for group, concept in enumerate(concepts)
        for pair in concept_pairs(
            streams,
            concept,
            group,
            templates(kind_of(concept.kind)),
            plan,
            taken[group] if taken else set(),
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

    A causal encoder gives a name at the start of a prompt the row of the bare name, whatever
    follows. Such a row is taken once: `taken` holds the rows given so far and grows. Passing the
    edit's set on to the probes leaves them with rows that the edit was not made from.
    """
    for phrase in concept.phrases:
        for template in templates:
            pair = _pair(streams, concept, phrase, group, template, plan, taken)
            if pair.target.rows:
                yield pair


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
    kept: list[tuple[int, int, bool]] = []
    for stream in streams:
        span, anchor_span = stream.locate(prompt), stream.locate(anchor_prompt)
        _refuse_unreadable(concept, phrase, span, anchor_span)
        rows, anchor_rows = stream.paired_rows(
            positions, span, anchor_span, plan.empty_anchor == "start"
        )
        bare, each = (
            stream.spread(_bare_positions(concept)),
            _flag_of_each_row(stream.spread(positions), len(rows)),
        )
        flags = [template is not BARE or flag not in bare for flag in each]
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


def _refuse_unreadable(
    concept: Concept, phrase: str, span: TokenSpan, anchor_span: TokenSpan
) -> None:
    if span.subject == 0:
        raise InputError(
            f"{concept.where}: the text encoder cannot read '{phrase}'; spell the name differently."
        )
    if span.ids == anchor_span.ids:
        raise InputError(
            f"{concept.where}: '{phrase}' and '{concept.anchor}' are the same to the text encoder; "
            "choose another anchor."
        )


def _flag_of_each_row(positions: Position, count: int) -> list[Position]:
    if positions & Position.ALL:
        return [Position.ALL] * count
    single = [flag for flag in Position if flag & positions & ~MANY]
    return single + [Position.TOKENS] * (count - len(single))


@dataclass(frozen=True)
class KeptName:
    """One name that must stay: the rows of the bare name and those in context."""

    name: str
    bare: tuple[RowRequest, ...]
    contexts: tuple[RowRequest, ...] = ()

    def for_input(self, text_input: str) -> KeptName:
        """The same prompts as one text input of the model reads them."""
        if text_input == TOKENS:
            return self
        bare = dict.fromkeys(request.text for request in self.bare)
        contexts = dict.fromkeys(r.text for r in self.contexts if r.text not in bare)
        return KeptName(
            self.name,
            tuple(RowRequest(text, (0,), text_input) for text in bare),
            tuple(RowRequest(text, (0,), text_input) for text in contexts),
        )


def usable_names(
    streams: Sequence[Stream], retain: RetainSet
) -> tuple[list[int], list[KeptName], list[str]]:
    """Indices of the names that can be encoded, the last subject rows of each, and the names that
    cannot.

    A retain list may hold anything, so a name that makes no token, or too many, is set aside and
    not an error.
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
            names.append(
                KeptName(name, (_request(streams, Prompt.bare(name), Position.LAST_SUBJECT),))
            )
        else:
            unusable.append(name)
    return places, names, unusable


def with_contexts(
    streams: Sequence[Stream], kept: KeptName, templates: Sequence[Template], positions: Position
) -> KeptName:
    """The same name with its rows in prompts; a name too long for one of them gets none."""
    taken: set[StreamKey] = set()
    for request in kept.bare:
        _request(streams, Prompt.bare(request.text), Position.LAST_SUBJECT, taken)
    try:
        contexts = [
            _request(streams, template.fill(kept.name), positions, taken) for template in templates
        ]
    except InputError:
        return kept
    return KeptName(kept.name, kept.bare, tuple(request for request in contexts if request.rows))


def retain_prompts(kind: str, plan: RowPlan, place: int) -> tuple[Template, ...]:
    """Prompts around a kept name; whole captions are prompts already."""
    chosen = context_kind(kind)
    if chosen is CAPTION:
        return (BARE,)
    prompts = plan.retain_prompts(chosen, place)
    return prompts if plan.rotate else (BARE, *prompts)


def judging_contexts(
    kind: str, templates: Callable[[Kind], Sequence[Template]], place: int
) -> tuple[Template, ...]:
    """Prompts around a name that edits are judged by."""
    chosen = context_kind(kind)
    return (BARE,) if chosen is CAPTION else judging_prompts(templates(chosen), place)


def kept_by_plan(
    streams: Sequence[Stream],
    concepts: Sequence[Concept],
    kept: Sequence[str],
    known: Sequence[str],
    plan: RowPlan,
) -> Iterator[KeptName]:
    """What the plan keeps besides the names in `kept`; `known` are all names of the list, with
    those set aside.
    """
    if plan.rows == "bare":
        if any(kind_of(concept.kind).whole_prompt for concept in concepts):
            # The paper's retain set for implicit concepts: the empty prompt, all rows after the
            # start token.
            yield KeptName("", (_request(streams, Prompt.bare(""), Position.ALL),))
        return
    if not plan.hold_anchors:
        return
    erased = WordIndex(phrase for concept in concepts for phrase in concept.phrases)
    seen = {same_name_key(name) for name in kept} | {""}
    for concept in concepts:
        key = same_name_key(concept.anchor)
        if key in seen or erased.match(concept.anchor):
            continue
        seen.add(key)
        bare = _request(streams, Prompt.bare(concept.anchor), Position.LAST_SUBJECT)
        prompts = plan.solve_templates(kind_of(concept.kind))
        yield with_contexts(
            streams, KeptName(concept.anchor, (bare,)), prompts, plan.retain_positions
        )
    seen |= {same_name_key(name) for name in known}
    kinds = [kind_of(kind) for kind in dict.fromkeys(concept.kind for concept in concepts)]
    plain = [template.fill("") for kind in kinds for template in plan.solve_templates(kind)]
    for prompt in (*plain, *(Prompt.bare(caption) for caption in _captions(plan.captions))):
        if same_name_key(prompt.text) not in seen and not erased.match(prompt.text):
            seen.add(same_name_key(prompt.text))
            yield KeptName(
                prompt.text, (), (_request(streams, prompt, plan.retain_positions, set()),)
            )


def whole_prompt(streams: Sequence[Stream], prompt: Prompt, text_input: str = TOKENS) -> RowRequest:
    """All rows of a prompt."""
    if text_input != TOKENS:
        return RowRequest(prompt.text, (0,), text_input)
    rows = [row for stream in streams for row in stream.whole(stream.locate(prompt))]
    return RowRequest(prompt.text, tuple(rows))


def _captions(count: int) -> tuple[str, ...]:
    """Some of the built-in captions, evenly from the whole list."""
    captions = builtin_retain(CAPTIONS).names if count else ()
    return captions[:: max(1, len(captions) // max(1, count))][:count]


def _request(
    streams: Sequence[Stream],
    prompt: Prompt,
    positions: Position,
    taken: set[StreamKey] | None = None,
) -> RowRequest:
    """A prompt's rows in all streams, without those that repeat rows of the prompts in `taken`,
    which grows.
    """
    rows: list[int] = []
    for stream in streams:
        span = stream.locate(prompt)
        keys = {row: stream.key(span, row) for row in stream.rows(positions, span)}
        fresh = [row for row in keys if taken is None or keys[row] not in taken]
        if taken is not None:
            taken.update(keys[row] for row in fresh)
        rows += fresh
    return RowRequest(prompt.text, tuple(rows))
