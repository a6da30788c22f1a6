"""From concepts and retain names to the embedding rows that the engine solves with."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InputError
from ..rows import Rows
from .cached_encoder import CachedEncoder
from .encoder import Progress, RowRequest, TextEncoder
from .kinds import Kind, Template, kind_of
from .phrases import Concept
from .plan import RowPlan
from .retain import RetainSet
from .retain_rows import HeldConcept, bare_names, held_by_plan, with_contexts
from .row_pairs import RowPair, concept_pairs, read_pairs
from .streams import StreamKey

Rank = Callable[[Rows, Rows, Rows], Sequence[int]]
"""(targets, anchors, bare retain rows) to the indices of the retain concepts worth encoding in context."""


@dataclass(frozen=True)
class Gathered:
    """Everything that a solve and its certificate need from the text side."""

    targets: Rows
    anchors: Rows
    """Row by row the anchor's counterpart of `targets`: same template, same position."""
    retain: Rows
    invariants: Tensor
    """`context_length x d`: all rows of the empty prompt, its start token first where there is one."""
    probes: tuple[Rows, Rows]
    """Targets and anchors in contexts that the rows above do not contain."""
    unusable: tuple[str, ...]
    """Retain names left out because the tokenizer makes nothing of them, or more than a prompt holds."""
    in_context: int
    """How many retain names have rows in context."""
    encoded: int
    """Texts that were encoded; the others came from the cache."""
    reused: int
    seconds: dict[str, float]


def gather_rows(
    encoder: TextEncoder | CachedEncoder,
    concepts: Sequence[Concept],
    retain: RetainSet,
    plan: RowPlan,
    rank: Rank | None = None,
    progress: Progress | None = None,
) -> Gathered:
    """Encodes concepts, then bare retain names, then contexts of the retain names that `rank` chooses.

    Without `rank` every retain name is encoded in context, which is costly: padding rows need whole prompts. Names that
    contain a target should have been dropped before (`drop_targets`).
    """
    if not concepts:
        raise InputError("There is no concept to erase: name at least one.")
    reader = encoder if isinstance(encoder, CachedEncoder) else CachedEncoder(encoder)
    before = reader.encoded, reader.reused
    clock = _Clock()
    invariants = reader.rows([RowRequest("", tuple(range(reader.encoder.context_length)))], "empty prompt", progress)[0]
    taken: list[set[StreamKey]] = [set() for _ in concepts]
    targets, anchors = _concept_rows(reader, concepts, plan.solve_templates, plan, taken, "concepts", progress)
    probes = _concept_rows(reader, concepts, plan.unseen_templates, plan, taken, "probes", progress)
    clock.lap("concepts")
    kept, held, unusable = bare_names(reader.encoder, retain)
    blocks: dict[RowRequest, Tensor] = {}
    bare = _held_rows(reader, held, blocks, "retain names", progress)
    clock.lap("retain names")
    chosen = _chosen(plan, targets, anchors, bare, rank)
    _add_contexts(reader.encoder, held, [(i, retain.kind_of_name(kept[i], concepts[0].kind)) for i in chosen], plan)
    held += held_by_plan(reader.encoder, concepts, retain.names, plan)
    final = _held_rows(reader, held, blocks, "retain contexts", progress)
    clock.lap("retain contexts")
    return Gathered(
        targets=targets,
        anchors=anchors,
        retain=final,
        invariants=invariants,
        probes=probes,
        unusable=tuple(unusable),
        in_context=len(chosen),
        encoded=reader.encoded - before[0],
        reused=reader.reused - before[1],
        seconds=clock.seconds,
    )


def _concept_rows(
    reader: CachedEncoder,
    concepts: Sequence[Concept],
    templates: Callable[[Kind], Sequence[Template]],
    plan: RowPlan,
    taken: Sequence[set[StreamKey]],
    stage: str,
    progress: Progress | None,
) -> tuple[Rows, Rows]:
    """Targets and anchors, row by row; `taken`: for each concept the rows that it has already."""
    pairs: list[RowPair] = []
    for group, concept in enumerate(concepts):
        chosen = templates(kind_of(concept.kind))
        pairs += concept_pairs(reader.encoder, concept, group, chosen, plan, taken[group])
    names = [concept.target for concept in concepts], [concept.anchor for concept in concepts]
    return read_pairs(reader, pairs, *names, stage, progress)


def _held_rows(
    reader: CachedEncoder,
    held: Sequence[HeldConcept],
    blocks: dict[RowRequest, Tensor],
    stage: str,
    progress: Progress | None,
) -> Rows:
    """All rows of the retain concepts, in their order. `blocks` holds what was read before, and grows."""
    requests = [request for concept in held for request in (*concept.bare, *concept.contexts)]
    missing = [request for request in dict.fromkeys(requests) if request not in blocks]
    blocks.update(zip(missing, reader.rows(missing, stage, progress), strict=True))
    groups: list[int] = []
    context: list[bool] = []
    for group, concept in enumerate(held):
        for flag, part in ((False, concept.bare), (True, concept.contexts)):
            count = sum(len(request.rows) for request in part)
            groups += [group] * count
            context += [flag] * count
    values = torch.cat([torch.empty(0, reader.encoder.width), *(blocks[request] for request in requests)])
    return Rows(values, tuple(groups), tuple(concept.name for concept in held), tuple(context))


def _add_contexts(
    encoder: TextEncoder, held: list[HeldConcept], chosen: Sequence[tuple[int, str]], plan: RowPlan
) -> None:
    """Gives the chosen concepts (index and kind) their rows in context, in place."""
    for index, kind in chosen:
        held[index] = with_contexts(encoder, held[index], kind, plan, plan.retain_templates)


def _chosen(plan: RowPlan, targets: Rows, anchors: Rows, bare: Rows, rank: Rank | None) -> list[int]:
    """Retain concepts that get contexts."""
    if plan.rows == "bare":
        return []
    everything = range(len(bare.names))
    if rank is None:
        return list(everything)
    picked = sorted({int(index) for index in rank(targets, anchors, bare)})
    if picked and not 0 <= picked[0] <= picked[-1] < len(everything):
        raise InputError(f"The ranking chose retain names beyond the {len(everything)} there are.")
    return picked


class _Clock:
    """Seconds between laps."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = now - self._last
        self._last = now
