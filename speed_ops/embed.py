"""From a job's names to the embedding rows that the engine works with.

Kept names take three steps, because whole prompts are what costs time: every name bare; a ranking
of them by how far an unprotected edit would move them; contexts for those that it endangers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from .certificate.forecast import endangered, forecast
from .encoders.cache import CachedEncoder
from .encoders.encoder import TextEncoder, prompts_worth
from .engine.draws import generator, permutation
from .engine.problem import FEWEST_NAMES, WITNESS_SHARE, RowSet
from .engine.rows import Rows
from .engine.settings import EraseSettings
from .errors import InputError
from .job import Job
from .pooled import pooled_names, pooled_pairs
from .progress import Announce, Progress, Stage, Stopwatch
from .text.concept_list import Concept
from .text.kinds import Kind, Prompt, Template
from .text.plan import RowPlan
from .text.requests import (
    KeptName,
    RowPair,
    RowRequest,
    all_pairs,
    judging_contexts,
    kept_by_plan,
    retain_prompts,
    usable_names,
    whole_prompt,
    with_contexts,
)
from .text.retain_set import RetainSet, drop_targets
from .text.tokens import Stream, StreamKey


@dataclass(frozen=True, eq=False)
class Gathered(RowSet):
    """Everything that an edit and its certificate need from the text side."""

    dropped: tuple[str, ...]
    """Kept names left out because they contain a target."""
    unusable: tuple[str, ...]
    """Kept names left out because the tokenizer makes nothing of them, or more than a prompt
    holds.
    """
    left_out: int
    """Kept names that the effort did not reach."""
    in_context: int
    """How many kept names have rows in context."""
    encoded: int
    """Texts that were encoded; the others came from the cache."""
    reused: int
    seconds: dict[str, float]

    pooled: RowSet | None = None
    """The same prompts, one pooled embedding each; None where the pooled path is not edited."""

    def to(self, device: torch.device | str) -> Gathered:
        """The same rows, pooled ones too, on another device."""
        return replace(
            super().to(device), pooled=None if self.pooled is None else self.pooled.to(device)
        )

    def without_kept(self) -> Gathered:
        """Without the kept rows, pooled ones too."""
        return replace(
            super().without_kept(),
            pooled=None if self.pooled is None else self.pooled.without_kept(),
        )


@dataclass(frozen=True)
class ConceptRows:
    """The rows of what is to be erased, and of the empty prompt."""

    targets: Rows
    anchors: Rows
    probes: tuple[Rows, Rows]
    trial: tuple[Rows, Rows] | None
    invariants: Tensor
    """`rows x d`, or the one pooled embedding of the empty prompt."""
    pooled: ConceptRows | None = None
    """The same prompts, one pooled embedding each; None where the reader reads none."""


@dataclass(frozen=True)
class BareNames:
    """The kept names that can be encoded, each alone, and those of them set aside to judge by."""

    retain: RetainSet
    names: list[KeptName]
    places: list[int]
    """For each of `names` its place in the retain set."""
    rows: Rows
    unusable: list[str]
    held_out: list[tuple[int, KeptName]]
    """Place in the retain set, and the name."""
    witnesses: list[tuple[int, KeptName]]
    left_out: int
    known: dict[RowRequest, Tensor] = field(repr=False)
    """What was read so far."""

    def kind(self, place: int, otherwise: str) -> str:
        """What kind of thing the name at a place of the retain set is."""
        return self.retain.kind_of_name(place, otherwise)


def gather(
    encoder: TextEncoder | CachedEncoder,
    weights: Mapping[str, Tensor],
    job: Job,
    progress: Progress | None = None,
    announce: Announce | None = None,
    *,
    pools: bool = False,
) -> Gathered:
    """The rows of a job. `weights` decide which kept names are worth encoding in context.

    `announce` is told how many prompts are still to be encoded, and about how long that takes.
    `pools`: whether the pooled embeddings of the prompts are read, too.
    """
    retain, dropped = drop_targets(job.retain, job.concepts)
    reader = reading(encoder)
    reader.pools = pools
    before = reader.encoded, reader.reused
    watch = Stopwatch()
    with watch.part("concepts"):
        concepts = read_concepts(reader, job.concepts, job.plan, progress)
    if announce is not None:
        announce(
            _outlook(
                reader.encoder,
                job,
                len(retain),
                reader.encoded - before[0],
                watch.seconds["concepts"],
            )
        )
    with watch.part("retain names"):
        names = read_bare_names(reader, retain, job.plan, job.settings, progress)
    with watch.part("retain contexts"):
        chosen: Sequence[int] = ()
        if job.plan.rows == "context":
            ahead = forecast(weights, concepts.targets, concepts.anchors, names.rows, job.settings)
            chosen = (
                ahead.order[: job.plan.names] if job.plan.names else endangered(ahead, job.settings)
            )
            chosen = chosen[: job.settings.context_names]
        parts = (
            _in_contexts(reader.encoder.streams, names, chosen, job.concepts, job.plan),
            _judges(reader.encoder.streams, names, names.held_out, job, _probe_prompts),
            _judges(reader.encoder.streams, names, names.witnesses, job, job.plan.witness_prompts),
        )
        kept = [_read(reader, part, names.known, "retain contexts", progress) for part in parts]
        pooled = None
        if concepts.pooled is not None:
            pooled = _row_set(concepts.pooled, [pooled_names(reader, part) for part in parts])
    return Gathered(
        **vars(_row_set(concepts, kept)),
        pooled=pooled,
        dropped=dropped,
        unusable=tuple(names.unusable),
        left_out=names.left_out,
        in_context=len(chosen),
        encoded=reader.encoded - before[0],
        reused=reader.reused - before[1],
        seconds=watch.seconds,
    )


def _row_set(concepts: ConceptRows, kept: Sequence[Rows]) -> RowSet:
    """`kept`: the kept names, those held out and the witnesses."""
    retain, held_out, witnesses = kept
    return RowSet(
        targets=concepts.targets,
        anchors=concepts.anchors,
        retain=retain,
        invariants=concepts.invariants,
        probes=concepts.probes,
        trial=concepts.trial,
        held_out=held_out if held_out.names else None,
        witnesses=witnesses if witnesses.names else None,
    )


def _probe_prompts(kind: Kind) -> tuple[Template, ...]:
    return kind.probe_templates


def _outlook(encoder: TextEncoder, job: Job, names: int, encoded: int, seconds: float) -> str:
    """What is still to be encoded, in words."""
    names = min(names, job.plan.considered)
    whole = job.plan.prompts(names, job.settings.context_names)
    text = f"Up to {whole:,} prompts and {names:,} bare names are to be encoded"
    if not encoded:
        return f"{text}; those of earlier runs come from the cache."
    ahead = seconds / encoded * prompts_worth(encoder, whole, names)
    return f"{text}: about {ahead:.0f} s on this machine, less with a cache."


def reading(encoder: TextEncoder | CachedEncoder) -> CachedEncoder:
    """The encoder itself, or one around it that counts."""
    return encoder if isinstance(encoder, CachedEncoder) else CachedEncoder(encoder)


def read_concepts(
    reader: CachedEncoder,
    concepts: Sequence[Concept],
    plan: RowPlan,
    progress: Progress | None = None,
) -> ConceptRows:
    """Targets with their anchors, once in the prompts to make the edit from and once in others, to
    check it in.
    """
    if not concepts:
        raise InputError("There is nothing to erase: name at least one concept.")
    streams = reader.encoder.streams
    empty = reader.rows([whole_prompt(streams, Prompt.bare(""))], "empty prompt", progress)[0]
    # zeros, with which some encoders pad, stay zeros whatever the edit
    invariants = empty[empty.norm(dim=1) > 0]
    taken: list[set[StreamKey]] = [set() for _ in concepts]
    pairs = all_pairs(streams, concepts, plan.solve_templates, plan, taken)
    targets, anchors = read_pairs(reader, concepts, pairs, "concepts", progress)
    tried: list[RowPair] | None = None
    if plan.trial_templates:
        tried = all_pairs(streams, concepts, plan.trial_prompts, plan, taken)
    trial = None if tried is None else read_pairs(reader, concepts, tried, "concepts", progress)
    unseen = all_pairs(streams, concepts, plan.unseen_templates, plan, taken)
    probes = read_pairs(reader, concepts, unseen, "probes", progress)
    pooled = None
    if reader.pools:
        pooled = ConceptRows(
            *pooled_pairs(reader, concepts, pairs),
            probes=pooled_pairs(reader, concepts, unseen),
            trial=None if tried is None else pooled_pairs(reader, concepts, tried),
            invariants=reader.pooled([""]),
        )
    return ConceptRows(targets, anchors, probes, trial, invariants, pooled)


def read_bare_names(
    reader: CachedEncoder,
    retain: RetainSet,
    plan: RowPlan,
    settings: EraseSettings,
    progress: Progress | None = None,
) -> BareNames:
    """Step 1: every kept name by itself, which is cheap; some are set aside, by the seed, to judge
    by.
    """
    places, names, unusable = usable_names(reader.encoder.streams, retain)
    count = len(names)
    order = permutation(count, generator(settings.seed, "names to judge by"))
    held = min(plan.judges, round(settings.held_out * count))
    seen = min(plan.judges, round(WITNESS_SHARE * count)) if count >= FEWEST_NAMES else 0
    aside, witnesses = order[:held], order[held : held + seen]
    kept = sorted(order[held + seen :][: plan.considered])
    known: dict[RowRequest, Tensor] = {}
    chosen = [names[i] for i in kept]
    return BareNames(
        retain=retain,
        names=chosen,
        places=[places[i] for i in kept],
        rows=_read(reader, chosen, known, "retain names", progress),
        unusable=unusable,
        held_out=[(places[i], names[i]) for i in aside],
        witnesses=[(places[i], names[i]) for i in witnesses],
        left_out=count - held - seen - len(kept),
        known=known,
    )


def read_contexts(
    reader: CachedEncoder,
    bare: BareNames,
    chosen: Sequence[int],
    concepts: Sequence[Concept],
    plan: RowPlan,
    progress: Progress | None = None,
) -> Rows:
    """Step 3: all kept rows; the chosen names, and what the plan keeps besides, also inside
    prompts.
    """
    names = _in_contexts(reader.encoder.streams, bare, chosen, concepts, plan)
    return _read(reader, names, bare.known, "retain contexts", progress)


def _in_contexts(
    streams: Sequence[Stream],
    bare: BareNames,
    chosen: Sequence[int],
    concepts: Sequence[Concept],
    plan: RowPlan,
) -> list[KeptName]:
    if chosen and not 0 <= min(chosen) <= max(chosen) < len(bare.names):
        raise InputError(f"The ranking chose names beyond the {len(bare.names)} there are.")
    names = list(bare.names)
    for place, index in enumerate(sorted(set(chosen))):
        prompts = retain_prompts(bare.kind(bare.places[index], concepts[0].kind), plan, place)
        names[index] = with_contexts(streams, names[index], prompts, plan.retain_positions)
    kept = [name.name for name in bare.names]
    return [*names, *kept_by_plan(streams, concepts, kept, bare.retain.names, plan)]


def _judges(
    streams: Sequence[Stream],
    bare: BareNames,
    aside: Sequence[tuple[int, KeptName]],
    job: Job,
    templates: Callable[[Kind], Sequence[Template]],
) -> list[KeptName]:
    """Names set aside, bare and in prompts that no edit is made from."""
    names = []
    for turn, (place, name) in enumerate(aside):
        prompts = judging_contexts(bare.kind(place, job.concepts[0].kind), templates, turn)
        names.append(with_contexts(streams, name, prompts, job.plan.retain_positions))
    return names


def read_pairs(
    reader: CachedEncoder,
    concepts: Sequence[Concept],
    pairs: Sequence[RowPair],
    stage: Stage,
    progress: Progress | None = None,
) -> tuple[Rows, Rows]:
    """The pairs' embeddings: targets and, row by row, anchors, in the same groups."""
    blocks = reader.rows(
        [pair.target for pair in pairs] + [pair.anchor for pair in pairs], stage, progress
    )
    groups = tuple(pair.group for pair in pairs for _ in pair.target.rows)
    context = tuple(flag for pair in pairs for flag in pair.in_context)
    nothing = torch.empty(0, reader.width)
    targets, anchors = (
        torch.cat([nothing, *part]) for part in (blocks[: len(pairs)], blocks[len(pairs) :])
    )
    names = tuple(concept.target for concept in concepts)
    return Rows(targets, groups, names, context), Rows(
        anchors, groups, tuple(concept.anchor for concept in concepts), context
    )


def _read(
    reader: CachedEncoder,
    names: Sequence[KeptName],
    known: dict[RowRequest, Tensor],
    stage: Stage,
    progress: Progress | None,
) -> Rows:
    """All rows of the kept names, in their order. `known` holds what was read before, and grows."""
    requests = [request for name in names for request in (*name.bare, *name.contexts)]
    missing = [request for request in dict.fromkeys(requests) if request not in known]
    known.update(zip(missing, reader.rows(missing, stage, progress), strict=True))
    groups: list[int] = []
    context: list[bool] = []
    for group, name in enumerate(names):
        for flag, part in ((False, name.bare), (True, name.contexts)):
            count = sum(len(request.rows) for request in part)
            groups += [group] * count
            context += [flag] * count
    values = torch.cat([torch.empty(0, reader.width), *(known[request] for request in requests)])
    return Rows(values, tuple(groups), tuple(name.name for name in names), tuple(context))
