"""SpeedApplyErasure and SpeedApplyRecipe: an erasure made before, on this model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from comfy_api.latest import io

from ..speed_ops.errors import InputError, SpeedError
from ..speed_ops.files.lora import read_lora
from ..speed_ops.files.metadata import read_provenance
from ..speed_ops.files.recipe import Recipe
from ..speed_ops.recipe_job import StoredJob, job_of
from .earlier import job_in
from .erase import erased, erasing_outputs
from .host.paths import NONE, lora_names, model_file, recipe_file, recipe_names, state_of
from .host.weights import open_model
from .host_erasure import HostErasure
from .saving import applied
from .showing import shows_text
from .sockets import CATEGORY, Erasure

_STRENGTH = "1: the exact edit; 0: the model as it came."


class SpeedApplyErasure(io.ComfyNode):
    """A schema and one call."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeedApplyErasure",
            display_name="SPEED Apply Erasure",
            category=CATEGORY,
            description="Applies an erasure, or a LoRA that holds one, and checks that it fits the model.",
            inputs=[
                io.Model.Input("model", tooltip="The model to apply it to."),
                io.Combo.Input("lora", options=lora_names(), default=NONE, tooltip="A saved erasure; none: the wire."),
                io.Float.Input("strength", default=1.0, min=-5.0, max=5.0, step=0.05, tooltip=_STRENGTH),
                Erasure.Input("erasure", optional=True, tooltip="An erasure from another node; used if lora is none."),
            ],
            outputs=[
                io.Model.Output(display_name="model", tooltip="A clone with the erasure on it."),
                Erasure.Output(display_name="erasure", tooltip="The erasure that was applied."),
            ],
        )

    @classmethod
    def fingerprint_inputs(cls, lora=NONE, strength=None, **wired) -> str:
        return f"{lora}{strength}{state_of(model_file(f'loras/{lora}')) if lora not in (None, NONE) else ''}"

    @classmethod
    def execute(cls, model, lora=NONE, strength=1.0, erasure=None) -> io.NodeOutput:
        if lora not in (None, NONE):
            erasure = erasure_from_lora(model, model_file(f"loras/{lora}"), strength)
        if erasure is None:
            raise InputError("There is no erasure to apply: choose a LoRA or wire an erasure.")
        return io.NodeOutput(applied(model, erasure, strength), erasure)


class SpeedApplyRecipe(io.ComfyNode):
    """A schema and one call."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeedApplyRecipe",
            display_name="SPEED Apply Recipe",
            category=CATEGORY,
            description="Repeats a saved erasure on this model: solves it again for its weights and its CLIP.",
            inputs=[
                io.Model.Input("model", tooltip="The model to erase from; it need not be the recipe's."),
                io.Clip.Input("clip", tooltip="The CLIP of the same checkpoint."),
                io.Combo.Input("recipe", options=recipe_names(), tooltip="A .json in the input or output folder."),
                io.Float.Input(
                    "strength",
                    default=1.0,
                    min=-5.0,
                    max=5.0,
                    step=0.05,
                    tooltip="Times the recipe's own. " + _STRENGTH,
                ),
            ],
            outputs=erasing_outputs(),
            hidden=shows_text(),
        )

    @classmethod
    def validate_inputs(cls, recipe=None) -> bool | str:
        try:
            if recipe is not None:
                stored_job(recipe)
        except SpeedError as error:
            return str(error)
        return True

    @classmethod
    def fingerprint_inputs(cls, recipe=None, strength=None, **wired) -> str:
        return f"{recipe}{strength}{state_of(recipe_file(recipe)) if recipe else ''}"

    @classmethod
    def execute(cls, model, clip, recipe, strength) -> io.NodeOutput:
        stored = stored_job(recipe)
        notes = [*stored.notes, *skip_note(stored.clip_skip, clip.layer_idx)]
        return erased(cls, model, clip, stored.job, strength * stored.strength, *notes)


def stored_job(name: str) -> StoredJob:
    """The job of a recipe file by the name that the widget shows."""
    return job_of(Recipe.read(recipe_file(name)), f"The recipe {name}")


def skip_note(stored: int | None, wired: int | None) -> list[str]:
    """A sentence where the recipe was written for another CLIP skip."""
    if stored is None or stored == wired:
        return []
    return [f"The recipe was written with CLIP skip {stored}, this CLIP has {wired or 'none'}: set the same."]


def erasure_from_lora(model: Any, path: Path, strength: float) -> HostErasure:
    """A LoRA file as an erasure of this model, with its recipe where it carries one."""
    host = open_model(model, "KV")
    file = read_lora(path, host.layers)
    if file.unmatched:
        raise InputError(
            f"{path.name} also changes {len(file.unmatched)} layers that are no text layers, such as "
            f"{file.unmatched[0]}: it is no erasure. Load it with a LoRA loader."
        )
    provenance = read_provenance(file.metadata, path.name)
    recipe = provenance.recipe if provenance is not None else None
    job = job_in(recipe)
    return HostErasure(
        edits=dict(file.edits),
        architecture=host.architecture,
        layers=host.layers,
        strength=strength,
        concepts=job.concepts if job is not None else (),
        recipe=recipe,
        source=path.name,
    )
