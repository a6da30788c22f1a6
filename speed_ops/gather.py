"""From a job's names to the embedding rows that the engine works with.

Kept names take three steps, because whole prompts are what costs time: every name bare; a ranking of them by how far an
unprotected edit would move them; contexts for those that it endangers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .certificate.forecast import endangered, forecast
from .concepts.concept_list import Concept
from .concepts.retain_set import RetainSet, drop_targets
from .encoders.cache import CachedEncoder
from .encoders.encoder import TextEncoder
from .engine.rows import Rows
from .errors import InputError
from .job import Job
from .progress import Progress, Stage, Stopwatch
from .prompts.plan import RowPlan
from .prompts.requests import KeptName, RowPair, RowRequest, all_pairs, kept_by_plan, usable_names, with_contexts
from .prompts.tokens import StreamKey


@dataclass(frozen=True)
class Gathered:
    """Everything that an edit and its certificate need from the text side."""

    targets: Rows
    anchors: Rows
    """Row by row the anchor's counterpart of `targets`: same template, same position."""
    retain: Rows
    invariants: Tensor
    """`context_length x d`: all rows of the empty prompt, its start token first where there is one."""
    probes: tuple[Rows, Rows]
    """Targets and anchors in contexts that the rows above do not contain."""
    dropped: tuple[str, ...]
    """Kept names left out because they contain a target."""
    unusable: tuple[str, ...]
    """Kept names left out because the tokenizer makes nothing of them, or more than a prompt holds."""
    in_context: int
    """How many kept names have rows in context."""
    encoded: int
    """Texts that were encoded; the others came from the cache."""
    reused: int
    seconds: dict[str, float]


@dataclass(frozen=True)
class ConceptRows:
    """The rows of what is to be erased, and of the empty prompt."""

    targets: Rows
    anchors: Rows
    probes: tuple[Rows, Rows]
    invariants: Tensor
    """`context_length x d`"""


@dataclass(frozen=True)
class BareNames:
    """The kept names that can be encoded, each alone."""

    retain: RetainSet
    names: list[KeptName]
    places: list[int]
    """For each of `names` its place in the retain set."""
    rows: Rows
    unusable: list[str]
    known: dict[RowRequest, Tensor] = field(repr=False)
    """What was read so far."""


def gather(
    encoder: TextEncoder | CachedEncoder, weights: Mapping[str, Tensor], job: Job, progress: Progress | None = None
) -> Gathered:
    """The rows of a job. `weights` decide which kept names are worth encoding in context."""
    retain, dropped = drop_targets(job.retain, job.concepts)
    reader = reading(encoder)
    before = reader.encoded, reader.reused
    watch = Stopwatch()
    with watch.part("concepts"):
        concepts = read_concepts(reader, job.concepts, job.plan, progress)
    with watch.part("retain names"):
        names = read_bare_names(reader, retain, progress)
    with watch.part("retain contexts"):
        chosen: Sequence[int] = ()
        if job.plan.rows == "context":
            ahead = forecast(weights, concepts.targets, concepts.anchors, names.rows, job.settings)
            chosen = endangered(ahead, job.settings)
        kept = read_contexts(reader, names, chosen, job.concepts, job.plan, progress)
    return Gathered(
        targets=concepts.targets,
        anchors=concepts.anchors,
        retain=kept,
        invariants=concepts.invariants,
        probes=concepts.probes,
        dropped=dropped,
        unusable=tuple(names.unusable),
        in_context=len(chosen),
        encoded=reader.encoded - before[0],
        reused=reader.reused - before[1],
        seconds=watch.seconds,
    )


def reading(encoder: TextEncoder | CachedEncoder) -> CachedEncoder:
    """The encoder itself, or one around it that counts."""
    return encoder if isinstance(encoder, CachedEncoder) else CachedEncoder(encoder)


def read_concepts(
    reader: CachedEncoder, concepts: Sequence[Concept], plan: RowPlan, progress: Progress | None = None
) -> ConceptRows:
    """Targets with their anchors, once in the prompts to make the edit from and once in others, to check it in."""
    if not concepts:
        raise InputError("There is nothing to erase: name at least one concept.")
    everything = RowRequest("", tuple(range(reader.encoder.context_length)))
    invariants = reader.rows([everything], "empty prompt", progress)[0]
    streams = reader.encoder.streams
    taken: list[set[StreamKey]] = [set() for _ in concepts]
    pairs = all_pairs(streams, concepts, plan.solve_templates, plan, taken)
    targets, anchors = read_pairs(reader, concepts, pairs, "concepts", progress)
    unseen = all_pairs(streams, concepts, plan.unseen_templates, plan, taken)
    return ConceptRows(targets, anchors, read_pairs(reader, concepts, unseen, "probes", progress), invariants)


def read_bare_names(reader: CachedEncoder, retain: RetainSet, progress: Progress | None = None) -> BareNames:
    """Step 1: every kept name by itself, which is cheap."""
    places, names, unusable = usable_names(reader.encoder.streams, retain)
    known: dict[RowRequest, Tensor] = {}
    return BareNames(retain, names, places, _read(reader, names, known, "retain names", progress), unusable, known)


def read_contexts(
    reader: CachedEncoder,
    bare: BareNames,
    chosen: Sequence[int],
    concepts: Sequence[Concept],
    plan: RowPlan,
    progress: Progress | None = None,
) -> Rows:
    """Step 3: all kept rows; the chosen names, and what the plan keeps besides, also inside prompts."""
    if chosen and not 0 <= min(chosen) <= max(chosen) < len(bare.names):
        raise InputError(f"The ranking chose names beyond the {len(bare.names)} there are.")
    streams, names = reader.encoder.streams, list(bare.names)
    for index in sorted(set(chosen)):
        kind = bare.retain.kind_of_name(bare.places[index], concepts[0].kind)
        names[index] = with_contexts(streams, names[index], kind, plan, plan.retain_templates)
    names += kept_by_plan(streams, concepts, bare.retain.names, plan)
    return _read(reader, names, bare.known, "retain contexts", progress)


def read_pairs(
    reader: CachedEncoder,
    concepts: Sequence[Concept],
    pairs: Sequence[RowPair],
    stage: Stage,
    progress: Progress | None = None,
) -> tuple[Rows, Rows]:
    """The pairs' embeddings: targets and, row by row, anchors, in the same groups."""
    blocks = reader.rows([pair.target for pair in pairs] + [pair.anchor for pair in pairs], stage, progress)
    groups = tuple(pair.group for pair in pairs for _ in pair.target.rows)
    context = tuple(flag for pair in pairs for flag in pair.in_context)
    nothing = torch.empty(0, reader.encoder.width)
    targets, anchors = (torch.cat([nothing, *part]) for part in (blocks[: len(pairs)], blocks[len(pairs) :]))
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
    values = torch.cat([torch.empty(0, reader.encoder.width), *(known[request] for request in requests)])
    return Rows(values, tuple(groups), tuple(name.name for name in names), tuple(context))
