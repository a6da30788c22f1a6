"""Rows to ask for so that retain names, anchors and plain prompts stay what they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..errors import InputError
from .encoder import RowRequest, TextEncoder
from .kinds import BARE, CAPTION, context_kind, kind_of
from .listing import same_name_key
from .phrases import Concept
from .plan import RowPlan
from .retain import RetainSet
from .streams import StreamKey
from .tokens import Position, Prompt
from .words import WordIndex


@dataclass(frozen=True)
class HeldConcept:
    """One retain concept: the rows of its bare name and those in context."""

    name: str
    bare: tuple[RowRequest, ...]
    contexts: tuple[RowRequest, ...] = ()


def bare_names(encoder: TextEncoder, retain: RetainSet) -> tuple[list[int], list[HeldConcept], list[str]]:
    """Indices of the names that can be encoded, the last subject rows of each, and the names that cannot.

    A retain list may hold anything, so a name that makes no token, or too many, is set aside and not an error.
    """
    kept: list[int] = []
    held: list[HeldConcept] = []
    unusable: list[str] = []
    for index, name in enumerate(retain.names):
        try:
            usable = all(stream.locate(Prompt.bare(name)).subject for stream in encoder.streams)
        except InputError:
            usable = False
        if usable:
            kept.append(index)
            held.append(HeldConcept(name, (_request(encoder, Prompt.bare(name), Position.LAST_SUBJECT),)))
        else:
            unusable.append(name)
    return kept, held, unusable


def with_contexts(encoder: TextEncoder, held: HeldConcept, kind: str, plan: RowPlan, templates: int) -> HeldConcept:
    """The same name with its rows in the first templates of its kind; a name too long for a template gets none."""
    prompts: list[tuple[Prompt, Position]] = []
    # The bare name is a prompt too; its subject row is there already.
    after_name = plan.retain_positions & ~Position.LAST_SUBJECT
    if after_name:
        prompts.append((BARE.fill(held.name), after_name))
    chosen = context_kind(kind)
    if chosen is not CAPTION:
        prompts += [(template.fill(held.name), plan.retain_positions) for template in chosen.templates[:templates]]
    taken: set[StreamKey] = set()
    _request(encoder, Prompt.bare(held.name), Position.LAST_SUBJECT, taken)
    try:
        contexts = tuple(_request(encoder, prompt, positions, taken) for prompt, positions in prompts)
    except InputError:
        return held
    return HeldConcept(held.name, held.bare, contexts)


def held_by_plan(
    encoder: TextEncoder, concepts: Sequence[Concept], known: Sequence[str], plan: RowPlan
) -> Iterator[HeldConcept]:
    """What the plan retains besides the user's names."""
    if plan.rows == "bare":
        if any(kind_of(concept.kind).bare_rows & Position.ALL for concept in concepts):
            # The paper's retain set for implicit concepts: the empty prompt, all rows after the start token.
            yield HeldConcept("", (_request(encoder, Prompt.bare(""), Position.ALL),))
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
        bare = _request(encoder, Prompt.bare(concept.anchor), Position.LAST_SUBJECT)
        yield with_contexts(encoder, HeldConcept(concept.anchor, (bare,)), concept.kind, plan, plan.templates)
    for kind in dict.fromkeys(concept.kind for concept in concepts):
        for template in kind_of(kind).templates[: plan.templates]:
            plain = template.fill("")
            if same_name_key(plain.text) not in seen and not erased.match(plain.text):
                seen.add(same_name_key(plain.text))
                yield HeldConcept(plain.text, (), (_request(encoder, plain, plan.retain_positions),))


def _request(
    encoder: TextEncoder, prompt: Prompt, positions: Position, taken: set[StreamKey] | None = None
) -> RowRequest:
    """A prompt's rows in all streams, without those that repeat rows of the prompts in `taken`, which grows."""
    rows: list[int] = []
    for stream in encoder.streams:
        span = stream.locate(prompt)
        keys = {row: stream.key(span, row) for row in stream.rows(positions, span)}
        fresh = [row for row in stream.rows(positions, span) if taken is None or keys[row] not in taken]
        if taken is not None:
            taken.update(keys[row] for row in fresh)
        rows += fresh
    return RowRequest(prompt.text, tuple(rows))
