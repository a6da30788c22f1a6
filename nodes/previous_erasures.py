"""Previous erasures: those on a model, which a later one must respect, and those in LoRA files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..speed_ops.embedder import embed_targets
from ..speed_ops.engine.rows import Rows, join
from ..speed_ops.erasure import Erasure
from ..speed_ops.errors import InputError, Notice, SpeedError
from ..speed_ops.files.lora import read_lora
from ..speed_ops.inputs import TOKENS
from ..speed_ops.provenance import read_provenance
from ..speed_ops.recipe import StoredJob, job_of
from .host.patching import edits_on, only_text_layers, with_edits

if TYPE_CHECKING:
    from ..speed_ops.model import EditableModel
    from ..speed_ops.text.concept_list import Concept
    from .host.wiring import Wired

_ATTACHMENT = "speed_erase.previous"
"""Where a clone remembers what was erased from it; clones of the clone inherit it."""


def erasure_from_lora(model: EditableModel, path: Path) -> Erasure:
    """A LoRA file as an erasure of this model, with its recipe if it has one."""
    file = read_lora(path, model.layers)
    if file.unmatched:
        raise InputError(
            f"{path.name} also changes {len(file.unmatched)} layers that are not text layers, such"
            f" as {file.unmatched[0]}, so it is not an erasure. Load it with a LoRA loader."
        )
    provenance = read_provenance(file.metadata, path.name)
    erasure = Erasure(
        edits=dict(file.edits),
        family=model.architecture,
        layers=model.layers,
        recipe=provenance.recipe if provenance is not None else None,
        source=path.name,
    )
    stored = _stored_job(erasure)
    return erasure if stored is None else replace(erasure, concepts=stored.job.concepts)


def remember(clone: Any, erasure: Erasure) -> None:
    """Adds an erasure to those that the clone of a MODEL remembers."""
    clone.set_attachments(_ATTACHMENT, (*_previous(clone), erasure))


def before_erasure(model: Any, erasure: Erasure) -> Any:
    """The MODEL as it was before this erasure; the model itself if it does not have it.

    Args:
        model: ComfyUI's MODEL.
        erasure: What may be on it.
    """
    strength = sum(
        previous.strength
        for previous in _previous(model)
        if previous.edits.keys() == erasure.edits.keys()
        and all(previous.edits[key] is edit for key, edit in erasure.edits.items())
    )
    return with_edits(model, erasure.edits, -strength) if strength else model


def _stored_job(erasure: Erasure) -> StoredJob | None:
    """The job of the recipe in a file; None if it has no names or cannot be read."""
    recipe = erasure.recipe
    if recipe is None or not recipe.has_names:
        return None
    try:
        return job_of(recipe)
    except SpeedError:
        return None


def held_rows(model: Any, concepts: Sequence[Concept], wired: Wired) -> dict[str, Rows]:
    """{text input: rows to hold}; a name that is erased again goes where the new erasure sends it.

    Args:
        model: ComfyUI's MODEL.
        concepts: What the new erasure erases.
        wired: Makes the rows of erasures that came from files.
    """
    by_input: dict[str, list[Rows]] = {}
    for erasure in _previous(model):
        for name, rows in _targets_of(erasure, wired).items():
            by_input.setdefault(name, []).append(rows)
    erased_again = {concept.target.casefold() for concept in concepts}
    held: dict[str, Rows] = {}
    for name, sets in by_input.items():
        rows = join(sets)
        indices = [i for i, label in enumerate(rows.names) if label.casefold() not in erased_again]
        if indices:
            held[name] = rows.take_concepts(indices)
    return held


def notes_on(model: Any, held: Rows | None) -> list[Notice]:
    """Sentences for the report about previous erasures."""
    previous = _previous(model)
    notes: list[Notice] = []
    if held is not None:
        notes.append(
            Notice(
                f"Still erased, from an earlier erasure: {', '.join(held.names)}.",
                code="still_erased",
                names=list(held.names),
            )
        )
    for erasure in previous:
        if not erasure.targets and _stored_job(erasure) is None:
            notes.append(
                Notice(
                    f"{erasure.source or 'An earlier erasure'} lists no names, so what it erased"
                    " may come back.",
                    code="names_unknown",
                    source=erasure.source,
                )
            )
    remembered = Counter(key for erasure in previous for key in erasure.edits)
    if only_text_layers(model) and any(
        count > remembered[key] for key, count in edits_on(model).items()
    ):
        notes.append(
            Notice(
                "A LoRA on this model changes only text layers. If it is an erasure, use Load"
                " Erasure. A LoRA loader loses the erased names, so they may come back.",
                code="lora_without_names",
            )
        )
    return notes


def _previous(model: Any) -> tuple[Erasure, ...]:
    return model.get_attachment(_ATTACHMENT) or ()


def _targets_of(erasure: Erasure, wired: Wired) -> Mapping[str, Rows]:
    """Rows that it erased; those of an erasure from a file are encoded again."""
    stored = None if erasure.targets else _stored_job(erasure)
    if stored is None:
        return erasure.targets
    job, edited, reader = stored.job, erasure.edits.keys(), wired.reader
    text_inputs = [
        name
        for name, weights in wired.model.inputs.items()
        if name == TOKENS or (edited & weights.keys() and reader.width_of(name) > 0)
    ]
    plan = job.plan.prompted(wired.model.architecture.prompting)
    return embed_targets(reader, job.concepts, plan, text_inputs, wired.progress)
