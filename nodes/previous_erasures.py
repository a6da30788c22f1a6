"""Erasures that a model carries already: a later one must hold their targets where they were
put.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..speed_ops.embedder import embed_targets
from ..speed_ops.encoders.cache import CachedEncoder
from ..speed_ops.engine.rows import Rows, join
from ..speed_ops.erasure import Erasure
from ..speed_ops.errors import SpeedError
from ..speed_ops.inputs import TOKENS
from ..speed_ops.job import Job
from ..speed_ops.model import EditableModel
from ..speed_ops.progress import Progress
from ..speed_ops.recipe import Recipe, job_of
from ..speed_ops.text.concept_list import Concept
from .host.patching import edits_on, only_text_layers

_ATTACHMENT = "speed_erase.earlier"
"""Where a clone remembers what was erased from it; later clones of it remember, too."""


@dataclass(frozen=True, eq=False)
class Earlier:
    """One erasure on a model, as far as a later one must know it."""

    keys: frozenset[str]
    """Layers that it edits."""
    targets: Mapping[str, Rows]
    """{text input: its target rows}; empty for one that came from a file."""
    job: Job | None
    """How to make those rows again, from the file's recipe."""
    source: str
    """The file, or empty."""


def remember(clone: Any, before: Any, outcome: Erasure) -> None:
    """Notes on `clone` what `before` carried and what `outcome` adds."""
    job = None if outcome.targets else job_in(outcome.recipe)
    added = Earlier(frozenset(outcome.edits), outcome.targets, job, outcome.source)
    clone.set_attachments(_ATTACHMENT, (*_carried(before), added))


def job_in(recipe: Recipe | None) -> Job | None:
    """The job of a recipe in a file; None where it keeps its names to itself or cannot be
    understood.
    """
    if recipe is None or not recipe.has_names:
        return None
    try:
        return job_of(recipe).job
    except SpeedError:
        return None


def held_rows(
    model: Any,
    concepts: Sequence[Concept],
    reader: CachedEncoder,
    editable: EditableModel,
    progress: Progress | None,
) -> dict[str, Rows]:
    """{text input: rows to hold}; a name that is erased again goes where the new erasure sends it.

    Args:
        model: ComfyUI's MODEL.
        concepts: What the new erasure erases.
        reader: Makes the rows of erasures that came from files.
        editable: The model's layers.
        progress: May raise to interrupt.
    """
    by_input: dict[str, list[Rows]] = {}
    for earlier in _carried(model):
        for name, rows in _targets_of(earlier, reader, editable, progress).items():
            by_input.setdefault(name, []).append(rows)
    erased_again = {concept.target.casefold() for concept in concepts}
    held: dict[str, Rows] = {}
    for name, sets in by_input.items():
        rows = join(sets)
        others = [n for n, label in enumerate(rows.names) if label.casefold() not in erased_again]
        if others:
            held[name] = rows.take_concepts(others)
    return held


def notes_on(model: Any, held: Rows | None) -> list[str]:
    """What a report must say about erasures before this one."""
    carried = _carried(model)
    notes = (
        [f"Still erased, from an earlier erasure: {', '.join(held.names)}."]
        if held is not None
        else []
    )
    for one in carried:
        if not one.targets and one.job is None:
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
    earlier: Earlier, reader: CachedEncoder, editable: EditableModel, progress: Progress | None
) -> Mapping[str, Rows]:
    if earlier.targets or earlier.job is None:
        return earlier.targets
    text_inputs = [
        name
        for name, weights in editable.inputs.items()
        if name == TOKENS or (earlier.keys & weights.keys() and reader.width_of(name) > 0)
    ]
    return embed_targets(reader, earlier.job.concepts, earlier.job.plan, text_inputs, progress)
