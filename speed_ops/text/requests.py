"""Which rows of which prompts an encoder must compute: targets with their anchors, and kept names.

Each target row comes with the anchor row that it should become. Kept names come bare first;
contexts are added to those that are worth it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..errors import InputError
from ..inputs import TOKENS
from .concept_list import Concept
from .kinds import BARE, Kind, Prompt, Template, kind_of
from .names import WordIndex, same_name_key
from .plan import RowPlan
from .retain_set import RetainSet, builtin_retain
from .tokens import Position, Stream, StreamKey, TokenSpan

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
    """Pairs for every concept's target and aliases, in each template of its kind.

    A causal encoder gives a name at the start of a prompt the row of the bare name, whatever
    follows. Such a row is taken once. Passing the edit's `taken` on to the probes leaves them with
    rows that the edit was not made from.

    Args:
        streams: The encoder's streams.
        concepts: What is erased.
        templates: The templates of a kind.
        plan: Which positions to take.
        taken: For each concept the rows that it already has; grows.
    """
    taken = taken or [set() for _ in concepts]
    return [
        pair
        for group, concept in enumerate(concepts)
        for phrase in concept.phrases
        for template in templates(kind_of(concept.kind))
        if (pair := _pair(streams, concept, group, phrase, template, plan, taken[group]))
    ]


def _pair(
    streams: Sequence[Stream],
    concept: Concept,
    group: int,
    phrase: str,
    template: Template,
    plan: RowPlan,
    taken: set[StreamKey],
) -> RowPair | None:
    """The new rows of one prompt with those of its anchor prompt; None: there are none."""
    paper = Position.ALL if kind_of(concept.kind).whole_prompt else Position.LAST_SUBJECT
    if template is not BARE:
        positions = plan.positions
    elif plan.rows == "bare" or paper & Position.ALL:
        positions = paper
    else:
        positions = paper | plan.positions
    target_rows: list[int] = []
    anchor_rows: list[int] = []
    in_context: list[bool] = []
    prompt, anchor_prompt = template.fill(phrase), template.fill(concept.anchor)
    for stream in streams:
        span, anchor_span = stream.locate(prompt), stream.locate(anchor_prompt)
        _refuse_unreadable(concept, phrase, span, anchor_span)
        for flag, row, anchor_row in stream.paired_rows(
            positions, span, anchor_span, plan.empty_anchor == "start"
        ):
            key = stream.key(span, row)
            if key != stream.key(anchor_span, anchor_row) and key not in taken:
                taken.add(key)
                target_rows.append(row)
                anchor_rows.append(anchor_row)
                in_context.append(template is not BARE or flag not in stream.resolve(paper))
    if not target_rows:
        return None
    target = RowRequest(prompt.text, tuple(target_rows))
    anchor = RowRequest(anchor_prompt.text, tuple(anchor_rows))
    return RowPair(target, anchor, group, tuple(in_context))


def _refuse_unreadable(
    concept: Concept, phrase: str, span: TokenSpan, anchor_span: TokenSpan
) -> None:
    if span.subject == 0:
        raise InputError(
            f"{concept.where}: the text encoder cannot read '{phrase}'. Spell the name differently."
        )
    if span.ids == anchor_span.ids:
        raise InputError(
            f"{concept.where}: '{phrase}' and '{concept.anchor}' are the same to the text encoder. "
            "Choose another replacement."
        )


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
) -> tuple[list[tuple[int, KeptName]], list[str]]:
    """(index, last subject rows) of each name that can be encoded, and the names that cannot.

    A retain list may contain anything, so a name of no token, or of too many, is not an error.
    """
    usable: list[tuple[int, KeptName]] = []
    unusable: list[str] = []
    for index, name in enumerate(retain.names):
        prompt = Prompt.bare(name)
        try:
            readable = all(stream.locate(prompt).subject for stream in streams)
        except InputError:
            readable = False
        if readable:
            bare = _request(streams, prompt, Position.LAST_SUBJECT)
            usable.append((index, KeptName(name, (bare,))))
        else:
            unusable.append(name)
    return usable, unusable


def with_contexts(
    streams: Sequence[Stream], name: KeptName, templates: Sequence[Template], positions: Position
) -> KeptName:
    """The same name with its rows in prompts; a name too long for one of them gets none.

    Args:
        streams: The encoder's streams.
        name: The bare name.
        templates: Prompts with a placeholder for the name.
        positions: Which rows of each prompt.
    """
    taken: set[StreamKey] = set()
    for request in name.bare:
        _request(streams, Prompt.bare(request.text), Position.LAST_SUBJECT, taken)
    try:
        contexts = [
            _request(streams, template.fill(name.name), positions, taken) for template in templates
        ]
    except InputError:
        return name
    return KeptName(name.name, name.bare, tuple(request for request in contexts if request.rows))


def kept_by_plan(
    streams: Sequence[Stream],
    concepts: Sequence[Concept],
    retained: Sequence[str],
    listed: Sequence[str],
    plan: RowPlan,
) -> Iterator[KeptName]:
    """What the plan keeps in addition to the retained names: anchors, everyday words that go with
    the concepts, and prompts without a name.

    Args:
        streams: The encoder's streams.
        concepts: What is erased.
        retained: Names that are kept already.
        listed: All names of the list, with those set aside.
        plan: What to keep.
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
    keys = {same_name_key(name) for name in retained} | {""}
    held = [(concept.anchor, kind_of(concept.kind)) for concept in concepts]
    held += [(word, kind) for _, kind in list(held) for word in kind.neighbors]
    for turn, (name, kind) in enumerate(held):
        key = same_name_key(name)
        if key in keys or erased.match(name):
            continue
        keys.add(key)
        bare = _request(streams, Prompt.bare(name), Position.LAST_SUBJECT)
        is_neighbor = turn >= len(concepts)
        templates = (
            plan.retain_prompts(kind.name, turn) if is_neighbor else plan.solve_templates(kind)
        )
        yield with_contexts(streams, KeptName(name, (bare,)), templates, plan.retain_positions)
    keys |= {same_name_key(name) for name in listed}
    kinds = [kind_of(kind) for kind in dict.fromkeys(concept.kind for concept in concepts)]
    prompts = [template.fill("") for kind in kinds for template in plan.solve_templates(kind)]
    prompts += [Prompt.bare(caption) for caption in _captions(plan.captions)]
    for prompt in prompts:
        key = same_name_key(prompt.text)
        if key not in keys and not erased.match(prompt.text):
            keys.add(key)
            request = _request(streams, prompt, plan.retain_positions)
            yield KeptName(prompt.text, (), (request,))


def whole_prompt(streams: Sequence[Stream], prompt: Prompt, text_input: str = TOKENS) -> RowRequest:
    """All rows of a prompt.

    Args:
        streams: The encoder's streams.
        prompt: The prompt.
        text_input: Which input of the model the rows are for.
    """
    if text_input != TOKENS:
        return RowRequest(prompt.text, (0,), text_input)
    rows = [row for stream in streams for row in stream.distinct_rows(stream.locate(prompt))]
    return RowRequest(prompt.text, tuple(rows))


def _captions(count: int) -> tuple[str, ...]:
    """Some of the built-in captions, evenly from the list."""
    captions = builtin_retain(CAPTIONS).names if count else ()
    return captions[:: max(1, len(captions) // max(1, count))][:count]


def _request(
    streams: Sequence[Stream],
    prompt: Prompt,
    positions: Position,
    taken: set[StreamKey] | None = None,
) -> RowRequest:
    """A prompt's rows in all streams, without the rows in `taken`, which grows."""
    taken = set() if taken is None else taken
    rows: list[int] = []
    for stream in streams:
        span = stream.locate(prompt)
        keys = {row: stream.key(span, row) for row in stream.rows(positions, span)}
        fresh = [row for row, key in keys.items() if key not in taken]
        taken.update(keys[row] for row in fresh)
        rows += fresh
    return RowRequest(prompt.text, tuple(rows))
