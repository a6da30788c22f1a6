"""Which ways to ask for an erased thing still draw it: its name, aliases, typos and descriptions.

Every phrase is put into prompts that no edit was made from, and all rows from the end of the phrase
on are looked at, end token and padding included: in a causal encoder these are the rows that know
the phrase. With t, a and p the rows of target, anchor and phrase in the same template, the phrase
draws the share <W'p - Wa, Wt - Wa> / |Wt - Wa|^2 of the target: 1 for the name itself before the
edit, 0 for something that has become the anchor.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from types import MappingProxyType

import torch
from torch import Tensor

from .certificate.certificate import bars_of
from .devices import Workplace
from .encoders.cache import CachedEncoder
from .encoders.encoder import TextEncoder
from .engine.edits import LayerEdit
from .engine.prepare import WORK, check_weights, widen
from .errors import InputError
from .progress import Progress
from .text.concept_list import Concept, ConceptList
from .text.kinds import BARE, kind_of
from .text.names import fold, same_name_key
from .text.requests import RowRequest


def variants(
    concept: Concept,
    description: str = "",
    same: Callable[[str], Hashable] = str,
    written: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """{phrase: rung} in order of the rungs, without repeats.

    Args:
        concept: The erased concept.
        description: The user's own words for the thing; without them the kind's patterns are used.
        same: Phrases for which it gives equal values count as one; give the tokenizer's ids to try
            only what an encoder can distinguish.
        written: {phrase: rung} of more phrases, which a language model wrote.
    """
    steps: dict[Hashable, tuple[str, str]] = {}
    more = ((rung, phrase) for phrase, rung in written.items())
    for rung, phrase in chain(_all_variants(concept, description), more):
        if phrase:
            steps.setdefault(same(phrase), (phrase, rung))
    return dict(steps.values())


def _all_variants(concept: Concept, description: str) -> Iterator[tuple[str, str]]:
    name = concept.target
    yield "name", name
    for alias in concept.aliases:
        yield "alias", alias
    for spelled in (name.lower(), name.upper(), name.title()):
        yield "case", spelled
    words = name.split()
    if len(words) > 1:
        yield "surname", words[-1]
    yield "possessive", f"{name}'" if name.endswith("s") else f"{name}'s"
    for typo in typos(name):
        yield "typo", typo
    if fold(description):
        yield "description", fold(description)
    else:
        for pattern in kind_of(concept.kind).descriptions:
            yield "description", pattern.replace("{name}", name)


def typos(name: str) -> tuple[str, ...]:
    """Three typos in the middle of the longest word: two letters swapped, one dropped, one doubled.

    Words of fewer than four letters are left alone, as a typo in them makes another word.
    """
    words = name.split()
    longest = max(range(len(words)), key=lambda i: len(words[i]), default=None)
    if longest is None or len(words[longest]) < 4:
        return ()
    word = words[longest]
    middle = len(word) // 2
    swapped = word[: middle - 1] + word[middle] + word[middle - 1] + word[middle + 1 :]
    dropped = word[:middle] + word[middle + 1 :]
    doubled = word[:middle] + word[middle] + word[middle:]
    phrases = (
        " ".join((*words[:longest], typo, *words[longest + 1 :]))
        for typo in (swapped, dropped, doubled)
    )
    return tuple(typo for typo in phrases if typo != name)


TEMPLATES = 2
"""Prompts that each phrase is tried in, in addition to the phrase alone."""


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
    written: bool = False
    """Whether a language model wrote the phrase. It may be another thing's name, so people choose
    whether it becomes an alias.
    """

    @property
    def leaks(self) -> bool:
        """Whether the phrase still draws the target."""
        return self.after > bars_of(self.concept.kind).erased


@dataclass(frozen=True)
class LeakReport:
    """All phrases that were tried, those that draw most of their target first."""

    tried: tuple[Leak, ...]

    @property
    def leaking(self) -> tuple[Leak, ...]:
        """The phrases that still draw their target."""
        return tuple(leak for leak in self.tried if leak.leaks)

    @property
    def _sure(self) -> tuple[Leak, ...]:
        return tuple(leak for leak in self.leaking if not leak.written)

    def phrases(self) -> ConceptList:
        """The leaking phrases as concepts of their own, to be erased from the erased model, without
        those that a language model wrote."""
        concepts: dict[str, Concept] = {}
        for leak in self._sure:
            concept = leak.concept
            concepts.setdefault(
                same_name_key(leak.phrase),
                Concept(leak.phrase, concept.anchor, concept.kind, (), 0, "leaks"),
            )
        anchors = {same_name_key(concept.anchor) for concept in concepts.values()}
        return ConceptList(concept for key, concept in concepts.items() if key not in anchors)

    def closed(self) -> ConceptList:
        """The erased concepts with leaking phrases as aliases, to erase from the original model."""
        concepts = list(dict.fromkeys(leak.concept for leak in self.tried))
        used = {same_name_key(phrase) for concept in concepts for phrase in concept.phrases}
        used |= {same_name_key(concept.anchor) for concept in concepts}
        aliases: dict[Concept, list[str]] = {concept: list(concept.aliases) for concept in concepts}
        for leak in self._sure:
            if same_name_key(leak.phrase) not in used:
                used.add(same_name_key(leak.phrase))
                aliases[leak.concept].append(leak.phrase)
        return ConceptList(
            replace(concept, aliases=tuple(aliases[concept]), cleaned=()) for concept in concepts
        )

    def headline(self) -> str:
        """How many phrases leak."""
        leaking, tried = len(self.leaking), len(self.tried)
        bring = "brings" if leaking < 2 else "bring"
        return f"{leaking or 'None'} of {tried} phrases still {bring} back what was erased."

    def text(self) -> str:
        """One line for each phrase, worst first."""
        lines = [
            f"{'LEAKS' if leak.leaks else 'ok':5}  {leak.before:4.0%} -> {leak.after:4.0%} "
            f" {leak.rung}: '{leak.phrase}'"
            + ("" if leak.prompt == leak.phrase else f" (worst prompt: '{leak.prompt}')")
            for leak in self.tried
        ]
        return "\n".join([self.headline(), *lines])


@dataclass(frozen=True, eq=False)
class _Case:
    """One prompt of the ladder with its rows (`m x d`), aligned by distance from the name."""

    concept: Concept
    rung: str
    phrase: str
    prompt: str
    written: bool
    values: Tensor
    target: Tensor
    anchor: Tensor

    def to(self, device: torch.device) -> _Case:
        """The same on another device."""
        rows = {name: getattr(self, name).to(device) for name in ("values", "target", "anchor")}
        return replace(self, **rows)


def probe_leaks(
    encoder: TextEncoder | CachedEncoder,
    weights: Mapping[str, Tensor],
    edits: Mapping[str, LayerEdit],
    concepts: Sequence[Concept],
    *,
    strength: float = 1.0,
    templates: int = TEMPLATES,
    description: str = "",
    written: Mapping[Concept, Mapping[str, str]] = MappingProxyType({}),
    progress: Progress | None = None,
    workplace: Workplace | None = None,
) -> LeakReport:
    """Climbs the ladder of every concept.

    Args:
        encoder: Turns prompts into rows.
        weights: {layer key: `o x d`} BEFORE the edit.
        edits: By layer key.
        concepts: What was erased.
        strength: Scale of the edits.
        templates: Number of probe templates for each phrase.
        description: The user's own words for the thing.
        written: {concept: {phrase: what it is}} of phrases that a language model wrote.
        progress: May raise to interrupt.
        workplace: Where to measure; None: on the CPU.
    """
    if not concepts:
        raise InputError("There is nothing to probe. Name at least one concept.")
    # Whole prompts of phrases that are tried once would only fill the cache on disk.
    reader = (
        encoder.without_cache() if isinstance(encoder, CachedEncoder) else CachedEncoder(encoder)
    )
    workplace = workplace or Workplace()
    workplace.run(lambda _: check_weights(weights, reader.width))
    cases = [
        case
        for concept in concepts
        for case in _cases(
            reader, concept, templates, (description, written.get(concept, {})), progress
        )
    ]
    # only layers that read a prompt row by row
    edits = {key: edit for key, edit in edits.items() if key in weights}

    def measured(device: torch.device) -> list[list[float]]:
        there, shares = [case.to(device) for case in cases], []
        for done, (key, edit) in enumerate(edits.items()):
            if progress is not None:
                progress("leaks", done, len(edits))
            weight = widen(weights[key], key, there[0].target)
            edited = weight + strength * edit.to(device).delta().to(weight)
            both = [_share(weight, matrix, case) for matrix in (weight, edited) for case in there]
            shares.append(torch.stack(both))
        medians: list[list[float]] = torch.stack(shares).median(dim=0).values.view(2, -1).tolist()
        return medians

    medians = workplace.run(measured)
    worst: dict[tuple[Concept, str], Leak] = {}
    for case, old, new in zip(cases, *medians, strict=True):
        before, after = (min(max(share, 0.0), 1.0) for share in (old, new))
        leak = Leak(case.concept, case.rung, case.phrase, case.prompt, before, after, case.written)
        variant = case.concept, case.phrase
        if variant not in worst or leak.after > worst[variant].after:
            worst[variant] = leak
    return LeakReport(tuple(sorted(worst.values(), key=lambda leak: -leak.after)))


def _cases(
    reader: CachedEncoder,
    concept: Concept,
    templates: int,
    more: tuple[str, Mapping[str, str]],
    progress: Progress | None,
) -> list[_Case]:
    """Every variant alone and in probe templates of the concept's kind, with its rows."""
    streams = reader.encoder.streams

    def token_ids(phrase: str) -> Hashable:
        return tuple(tuple(stream.token_ids(phrase)) for stream in streams)

    description, written = more
    phrases = variants(concept, description, token_ids, written)
    contexts = (BARE, *kind_of(concept.kind).probe_templates[:templates])
    names = dict.fromkeys((*phrases, concept.target, concept.anchor))
    prompts = list(dict.fromkeys(context.fill(name) for name in names for context in contexts))
    requests = [
        RowRequest(prompt.text, tuple(stream.rows_from_name(stream.locate(prompt))))
        for prompt in prompts
        for stream in streams
    ]
    blocks = [block.to(WORK) for block in reader.rows(requests, "probes", progress)]
    count = len(streams)
    rows = {prompt: blocks[i * count : (i + 1) * count] for i, prompt in enumerate(prompts)}
    cases = []
    for phrase, rung in phrases.items():
        for context in contexts:
            compared = [context.fill(name) for name in (phrase, concept.target, concept.anchor)]
            values = _aligned(*(rows[prompt] for prompt in compared))
            own = written.get(phrase) == rung
            cases.append(_Case(concept, rung, phrase, compared[0].text, own, *values))
    return cases


def _aligned(*prompts: Sequence[Tensor]) -> Iterator[Tensor]:
    """Each prompt's rows, which come by stream, cut to the shortest prompt in each stream: row by
    row at the same distance from the name.
    """
    counts = [min(len(part) for part in stream) for stream in zip(*prompts, strict=True)]
    for blocks in prompts:
        yield torch.cat([part[:count] for part, count in zip(blocks, counts, strict=True)])


def _share(weight: Tensor, edited: Tensor, case: _Case) -> Tensor:
    """Share of the target's displacement from its anchor that the phrase still has."""
    goal = case.anchor @ weight.T
    change = case.target @ weight.T - goal
    drawn = case.values @ edited.T - goal
    return (drawn * change).sum() / change.square().sum().clamp(min=torch.finfo(WORK).tiny)
