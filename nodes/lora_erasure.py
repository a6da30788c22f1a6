"""A LoRA file as an erasure."""

from __future__ import annotations

from pathlib import Path

from ..speed_ops.erasure import Erasure
from ..speed_ops.errors import InputError
from ..speed_ops.files.lora import read_lora
from ..speed_ops.model import EditableModel
from ..speed_ops.provenance import read_provenance
from .previous_erasures import job_in


def erasure_from_lora(model: EditableModel, path: Path) -> Erasure:
    """A LoRA file as an erasure of this model, with its recipe if it has one."""
    file = read_lora(path, model.layers)
    if file.unmatched:
        raise InputError(
            f"{path.name} also changes {len(file.unmatched)} layers that are not text layers, such"
            f" as {file.unmatched[0]}, so it is not an erasure. Use a LoRA loader for it."
        )
    provenance = read_provenance(file.metadata, path.name)
    recipe = provenance.recipe if provenance is not None else None
    job = job_in(recipe)
    return Erasure(
        edits=dict(file.edits),
        family=model.architecture,
        layers=model.layers,
        concepts=job.concepts if job is not None else (),
        recipe=recipe,
        source=path.name,
    )
