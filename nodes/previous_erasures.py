"""Erasures that a model carries already: a later one must hold their targets where they were
put.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

from ..speed_ops.embed import read_pairs
from ..speed_ops.encoders.cache import CachedEncoder
from ..speed_ops.engine.rows import Rows, join
from ..speed_ops.erase import Erasure, Held
from ..speed_ops.errors import SpeedError
from ..speed_ops.job import Job, job_of
from ..speed_ops.pooled import pooled_pairs
from ..speed_ops.progress import Progress
from ..speed_ops.recipe import Recipe
from ..speed_ops.text.concept_list import Concept
from ..speed_ops.text.requests import all_pairs
from .host.patching import edits_on, only_text_layers

_ATTACHMENT = "speed_erase.earlier"
"""Where a clone remembers what was erased from it; later clones of it remember, too."""


@dataclass(frozen=True, eq=False)
class Earlier:
    """One erasure on a model, as far as a later one must know it."""

    keys: frozenset[str]
    """Layers that it edits."""
    targets: Held | None
    """Its target rows; None for one that came from a file."""
    job: Job | None
    """How to make those rows again, from the file's recipe."""
    source: str
    """The file, or empty."""


def remember(clone: Any, before: Any, outcome: Erasure) -> None:
    """Notes on `clone` what `before` carried and what `outcome` adds."""
    job = None if outcome.targets is not None else job_in(outcome.recipe)
    added = Earlier(frozenset(outcome.edits), outcome.targets, job, outcome.source)
    clone.set_attachments(_ATTACHMENT, (*_carried(before), added))


def job_in(recipe: Recipe | None) -> Job | None:
    """The job of a recipe in a file; None where it keeps its names to itself or cannot be
    understood.
    """
    if recipe is None or recipe.redacted:
        return None
    try:
        return job_of(recipe).job
    except SpeedError:
        return None


def held_rows(
    model: Any,
    targets: Sequence[Concept],
    reader: CachedEncoder,
    pooled: Container[str],
    progress: Progress | None,
) -> Held:
    """Rows to hold; a name that is erased anew goes where the new erasure sends it.

    `pooled`: the layer of the pooled path, or nothing.
    """
    parts = [
        found
        for one in _carried(model)
        if (found := _targets_of(one, reader, pooled, progress)) is not None
    ]
    anew = {concept.target.casefold() for concept in targets}
    return Held(
        _others([part.rows for part in parts], anew), _others([part.pooled for part in parts], anew)
    )


def _others(parts: Sequence[Rows | None], anew: Container[str]) -> Rows | None:
    """The rows of all names but those erased anew."""
    there = [part for part in parts if part is not None]
    if not there:
        return None
    total = join(there)
    kept = [place for place, name in enumerate(total.names) if name.casefold() not in anew]
    return total.take_concepts(kept) if kept else None


def notes_on(model: Any, held: Rows | None) -> list[str]:
    """What a report must say about erasures before this one."""
    carried = _carried(model)
    notes = (
        [f"Still erased, from an earlier erasure: {', '.join(held.names)}."]
        if held is not None
        else []
    )
    for one in carried:
        if one.targets is None and one.job is None:
            notes.append(
                f"{one.source or 'An earlier erasure'} does not say which names it erased, so they"
                " may come back."
            )
    ours = {key: sum(key in one.keys for one in carried) for one in carried for key in one.keys}
    if only_text_layers(model) and any(
        count > ours.get(key, 0) for key, count in edits_on(model).items()
    ):
        notes.append(
            "A LoRA on this model changes only text layers. If it is an erasure, load it with SPEED"
            " Apply Erasure: a LoRA loader does not pass on the erased names, so they may come"
            " back."
        )
    return notes


def _carried(model: Any) -> tuple[Earlier, ...]:
    return model.get_attachment(_ATTACHMENT) or ()


def _targets_of(
    one: Earlier, reader: CachedEncoder, pooled: Container[str], progress: Progress | None
) -> Held | None:
    if one.targets is not None or one.job is None:
        return one.targets
    concepts, plan = one.job.concepts, one.job.plan
    pairs = all_pairs(reader.encoder.streams, concepts, plan.solve_templates, plan)
    reader.pools = any(key in pooled for key in one.keys) and reader.encoder.pooled_width > 0
    rows = read_pairs(reader, concepts, pairs, "concepts", progress)[0]
    return Held(rows, pooled_pairs(reader, concepts, pairs)[0] if reader.pools else None)
