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
from .tokens import Position, Prompt, RowKey, locate, row_indices, row_key
from .words import WordIndex


@dataclass(frozen=True)
class HeldConcept:
    """One retain concept: the rows of its bare name and those in context."""

    name: str
    bare: tuple[RowRequest, ...]
    contexts: tuple[RowRequest, ...] = ()


def bare_names(encoder: TextEncoder, retain: RetainSet) -> tuple[list[int], list[HeldConcept], list[str]]:
    """Indices of the names that can be encoded, the last subject row of each, and the names that cannot.

    A retain list may hold anything, so a name that makes no token, or too many, is set aside and not an error.
    """
    kept: list[int] = []
    held: list[HeldConcept] = []
    unusable: list[str] = []
    for index, name in enumerate(retain.names):
        try:
            request = _request(encoder, Prompt.bare(name), Position.LAST_SUBJECT)
        except InputError:
            request = None
        if request is None or request.rows == (0,):
            unusable.append(name)
        else:
            kept.append(index)
            held.append(HeldConcept(name, (request,)))
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
    taken: set[RowKey] = set()
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
            yield HeldConcept("", (RowRequest("", tuple(range(1, encoder.context_length))),))
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


def _request(encoder: TextEncoder, prompt: Prompt, positions: Position, taken: set[RowKey] | None = None) -> RowRequest:
    """The rows of a prompt, without those that a causal encoder repeats from the prompts in `taken`, which grows."""
    span = locate(prompt, encoder.token_ids, encoder.context_length)
    rows = row_indices(positions, span, encoder.context_length)
    if taken is not None and encoder.causal:
        rows = tuple(row for row in rows if row_key(span, row) not in taken)
        taken.update(row_key(span, row) for row in rows)
    return RowRequest(prompt.text, rows)
