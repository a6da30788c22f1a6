"""Previous erasures on a model. A later one must keep their targets erased."""

from __future__ import annotations

from collections import Counter
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

_ATTACHMENT = "speed_erase.previous"
"""Where a clone remembers what was erased from it; clones of the clone inherit it."""


@dataclass(frozen=True, eq=False)
class PreviousErasure:
    """What a later erasure must know about one that is on the model."""

    keys: frozenset[str]
    """Layers that it edits."""
    targets: Mapping[str, Rows]
    """{text input: its target rows}; empty for one that came from a file."""
    job: Job | None
    """How to encode those rows again, from the file's recipe."""
    source: str
    """The file, or empty."""


def remember(clone: Any, before: Any, erasure: Erasure) -> None:
    """Notes on a clone the previous erasures and the new one.

    Args:
        clone: The erased MODEL.
        before: The MODEL that it was cloned from.
        erasure: What was added.
    """
    job = None if erasure.targets else job_in(erasure.recipe)
    added = PreviousErasure(frozenset(erasure.edits), erasure.targets, job, erasure.source)
    clone.set_attachments(_ATTACHMENT, (*_previous(before), added))


def job_in(recipe: Recipe | None) -> Job | None:
    """The job of a recipe in a file; None if it has no names or cannot be read."""
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
    for erasure in _previous(model):
        for name, rows in _targets_of(erasure, reader, editable, progress).items():
            by_input.setdefault(name, []).append(rows)
    erased_again = {concept.target.casefold() for concept in concepts}
    held: dict[str, Rows] = {}
    for name, sets in by_input.items():
        rows = join(sets)
        indices = [i for i, label in enumerate(rows.names) if label.casefold() not in erased_again]
        if indices:
            held[name] = rows.take_concepts(indices)
    return held


def notes_on(model: Any, held: Rows | None) -> list[str]:
    """What a report says about previous erasures."""
    previous = _previous(model)
    notes = []
    if held is not None:
        notes.append(f"Still erased, from an earlier erasure: {', '.join(held.names)}.")
    for erasure in previous:
        if not erasure.targets and erasure.job is None:
            notes.append(
                f"{erasure.source or 'An earlier erasure'} does not say which names it erased, so"
                " they may come back."
            )
    remembered = Counter(key for erasure in previous for key in erasure.keys)
    if only_text_layers(model) and any(
        count > remembered[key] for key, count in edits_on(model).items()
    ):
        notes.append(
            "A LoRA on this model changes only text layers. If it is an erasure, load it with SPEED"
            " Apply Erasure: a LoRA loader does not pass on the erased names, so they may come"
            " back."
        )
    return notes


def _previous(model: Any) -> tuple[PreviousErasure, ...]:
    return model.get_attachment(_ATTACHMENT) or ()


def _targets_of(
    erasure: PreviousErasure,
    reader: CachedEncoder,
    editable: EditableModel,
    progress: Progress | None,
) -> Mapping[str, Rows]:
    if erasure.targets or erasure.job is None:
        return erasure.targets
    text_inputs = [
        name
        for name, weights in editable.inputs.items()
        if name == TOKENS or (erasure.keys & weights.keys() and reader.width_of(name) > 0)
    ]
    return embed_targets(reader, erasure.job.concepts, erasure.job.plan, text_inputs, progress)
