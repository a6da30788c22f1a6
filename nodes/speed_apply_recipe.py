"""SPEED Apply Recipe: a saved erasure, made again for this model."""

from __future__ import annotations

from comfy_api.latest import io

from ..speed_ops.errors import SpeedError
from ..speed_ops.job import check_strength
from ..speed_ops.recipe import Recipe, StoredJob, job_of
from .host.paths import recipe_file, recipe_names, state_of
from .sockets import CATEGORY, found_by, shows_text, strength_input
from .speed_erase import erased, erasing_outputs


class SpeedApplyRecipe(io.ComfyNode):
    """Its inputs, its outputs, and the call."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeedApplyRecipe",
            display_name="SPEED Apply Recipe",
            category=CATEGORY,
            **found_by(),
            description=(
                "Repeats a saved erasure on this model: the edit is made anew for this model and"
                " CLIP."
            ),
            inputs=[
                io.Model.Input(
                    "model",
                    tooltip=(
                        "The model to erase from. It need not be the one the recipe was saved with."
                    ),
                ),
                io.Clip.Input("clip", tooltip="The CLIP from the same checkpoint."),
                io.Combo.Input(
                    "recipe",
                    options=recipe_names(),
                    tooltip="A .json in the input or output folder.",
                ),
                strength_input(
                    "Multiplies the recipe's own strength: 1 repeats the erasure as saved, 0 leaves"
                    " the model unchanged."
                ),
            ],
            outputs=erasing_outputs(),
            is_output_node=True,  # so that Run shows the result, also one that ComfyUI has cached
            hidden=shows_text(),
        )

    @classmethod
    def validate_inputs(cls, recipe=None, strength=None) -> bool | str:
        try:
            check_strength(1.0 if strength is None else strength)
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
    own = wired or "none"
    return [
        f"The recipe was saved with CLIP skip {stored}, but this CLIP has {own}. Set the same CLIP"
        " skip."
    ]
