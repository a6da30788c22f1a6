"""Which ways to ask for an erased thing still draw it: its name, aliases, slips of the hand, and descriptions.

Every phrase is put into prompts that no solve sees, and all rows from the end of the phrase on are looked at, end token
and padding included: in a causal encoder these are the rows that know the phrase. With t, a and p the rows of target,
anchor and phrase in the same template, the phrase draws the share <W'p - Wa, Wt - Wa> / |Wt - Wa|^2 of the target: 1
for the name itself before the edit, 0 for something that has become the anchor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .certificate import ERASED_BELOW
from .erase import Progress
from .erasure import LayerEdit
from .errors import InputError
from .problem import WORK, check_weights, widen
from .text.cached_encoder import CachedEncoder
from .text.encoder import RowRequest, TextEncoder
from .text.kinds import Template
from .text.ladder import LadderPrompt, ladder
from .text.listing import same_name_key
from .text.phrases import Concept, ConceptList
from .text.streams import Stream
from .text.tokens import Prompt

LEAKS_ABOVE = ERASED_BELOW
"""Share of the target that a phrase may still draw in its worst context."""
TEMPLATES = 2
"""Contexts tried beside the bare phrase."""


@dataclass(frozen=True)
class Leak:
    """One phrase, in the context in which it draws most of the target."""

    concept: Concept
    rung: str
    phrase: str
    prompt: str
    before: float
    """Share of the target that the phrase drew before the edit, median over layers."""
    after: float

    @property
    def leaks(self) -> bool:
        """Whether the phrase still draws the target."""
        return self.after >= LEAKS_ABOVE


@dataclass(frozen=True)
class LeakReport:
    """All phrases that were tried, those that draw most of their target first."""

    tried: tuple[Leak, ...]

    @property
    def leaking(self) -> tuple[Leak, ...]:
        """The phrases that still draw their target."""
        return tuple(leak for leak in self.tried if leak.leaks)

    def phrases(self) -> ConceptList:
        """The leaking phrases as concepts of their own, to be erased from the erased model."""
        found: dict[str, Concept] = {}
        for leak in self.leaking:
            one = leak.concept
            found.setdefault(same_name_key(leak.phrase), Concept(leak.phrase, one.anchor, one.kind, (), 0, "leaks"))
        anchors = {same_name_key(concept.anchor) for concept in found.values()}
        return ConceptList(tuple(concept for key, concept in found.items() if key not in anchors))

    def closed(self) -> ConceptList:
        """The erased concepts with the leaking phrases as aliases, to be erased from the original model."""
        concepts = list(dict.fromkeys(leak.concept for leak in self.tried))
        taken = {same_name_key(phrase) for concept in concepts for phrase in concept.phrases}
        taken |= {same_name_key(concept.anchor) for concept in concepts}
        aliases: dict[Concept, list[str]] = {concept: list(concept.aliases) for concept in concepts}
        for leak in self.leaking:
            if same_name_key(leak.phrase) not in taken:
                taken.add(same_name_key(leak.phrase))
                aliases[leak.concept].append(leak.phrase)
        return ConceptList(
            tuple(Concept(c.target, c.anchor, c.kind, tuple(aliases[c]), c.line, c.source) for c in concepts)
        )

    def text(self) -> str:
        """One line for each phrase, worst first."""
        head = f"{len(self.leaking)} of {len(self.tried)} phrases still draw what was erased."
        lines = [
            f"{'LEAKS' if leak.leaks else 'ok':5}  {leak.before:4.0%} -> {leak.after:4.0%}  {leak.rung}: "
            f"'{leak.phrase}' (worst in '{leak.prompt}')"
            for leak in self.tried
        ]
        return "\n".join([head, *lines])


@dataclass(frozen=True, eq=False)
class _Case:
    """One prompt of the ladder with its rows (`m x d` each, row by row at the same distance from the name)."""

    concept: Concept
    step: LadderPrompt
    phrase: Tensor
    target: Tensor
    anchor: Tensor


def probe_leaks(
    encoder: TextEncoder | CachedEncoder,
    weights: Mapping[str, Tensor],
    edits: Mapping[str, LayerEdit],
    concepts: Sequence[Concept],
    *,
    strength: float = 1.0,
    templates: int = TEMPLATES,
    description: str = "",
    progress: Progress | None = None,
) -> LeakReport:
    """Climbs the ladder of every concept. `weights` are those BEFORE the edit; `description`: the user's own words."""
    if not concepts:
        raise InputError("There is no concept to probe: name at least one.")
    # Whole prompts of phrases nobody asks for again would only fill the cache on disk.
    reader = CachedEncoder(encoder.encoder if isinstance(encoder, CachedEncoder) else encoder)
    check_weights(weights, reader.encoder.width)
    cases = [case for one in concepts for case in _cases(reader, one, templates, description, progress)]
    before, after = [], []
    for done, (key, edit) in enumerate(edits.items()):
        if progress is not None:
            progress("leaks", done, len(edits))
        weight = widen(weights[key], key, cases[0].target)
        edited = weight + strength * edit.delta().to(weight)
        before.append([_share(weight, weight, case) for case in cases])
        after.append([_share(weight, edited, case) for case in cases])
    medians = [torch.tensor(part, dtype=WORK).median(dim=0).values.tolist() for part in (before, after)]
    worst: dict[tuple[Concept, str], Leak] = {}
    for case, old, new in zip(cases, *medians, strict=True):
        step = case.step
        found = Leak(case.concept, step.variant.rung, step.variant.phrase, step.prompt.text, old, new)
        known = worst.setdefault((case.concept, step.variant.phrase), found)
        if found.after > known.after:
            worst[case.concept, step.variant.phrase] = found
    return LeakReport(tuple(sorted(worst.values(), key=lambda leak: -leak.after)))


def _cases(
    reader: CachedEncoder, concept: Concept, templates: int, description: str, progress: Progress | None
) -> list[_Case]:
    streams = reader.encoder.streams
    steps = ladder(concept, description, lambda phrase: _all_tokens(streams, phrase), templates)
    used = list(dict.fromkeys(step.template for step in steps))
    prompts = list(dict.fromkeys([*(step.prompt for step in steps), *_references(concept, used)]))
    asked = [RowRequest(p.text, tuple(s.rows_from_name(s.locate(p)))) for p in prompts for s in streams]
    blocks = [block.to(WORK) for block in reader.rows(asked, "probes", progress)]
    rows = {p: blocks[i * len(streams) : (i + 1) * len(streams)] for i, p in enumerate(prompts)}
    return [
        _Case(concept, step, *_aligned(rows[step.prompt], rows[step.template.fill(concept.target)], rows[step.anchor]))
        for step in steps
    ]


def _all_tokens(streams: Sequence[Stream], phrase: str) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(stream.token_ids(phrase)) for stream in streams)


def _aligned(*prompts: Sequence[Tensor]) -> Iterator[Tensor]:
    """Each prompt's rows, stream by stream cut to the shortest prompt: row by row at the same distance from the name.

    `prompts`: of each prompt the rows of each stream.
    """
    counts = [min(len(part) for part in stream) for stream in zip(*prompts, strict=True)]
    for parts in prompts:
        yield torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


def _references(concept: Concept, templates: Sequence[Template]) -> list[Prompt]:
    return [template.fill(name) for template in templates for name in (concept.target, concept.anchor)]


def _share(weight: Tensor, edited: Tensor, case: _Case) -> float:
    """Share of the target's displacement from its anchor that the phrase still has."""
    goal = case.anchor @ weight.T
    own = case.target @ weight.T - goal
    drawn = case.phrase @ edited.T - goal
    return float((drawn * own).sum() / own.square().sum().clamp(min=torch.finfo(WORK).tiny))
