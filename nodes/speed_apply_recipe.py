"""Rerun Recipe: a saved erasure, recalculated for this model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from comfy_api.latest import io

from .host.paths import recipe_file, recipe_names, state_of
from .sockets import CATEGORY, erase_outputs, search_aliases, strength_input, validation

if TYPE_CHECKING:
    from ..speed_ops.recipe import StoredJob


class SpeedApplyRecipe(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeedApplyRecipe",
            display_name="Rerun Recipe",
            category=CATEGORY,
            **search_aliases(),
            description=("Repeats a saved erasure, recalculated for this model and CLIP."),
            inputs=[
                io.Model.Input(
                    "model",
                    tooltip="The model to erase from. It need not be the recipe's checkpoint.",
                ),
                io.Clip.Input("clip", tooltip="The CLIP from the same checkpoint."),
                io.Combo.Input(
                    "recipe",
                    options=recipe_names(),
                    tooltip="A recipe (.json) in ComfyUI's input or output folder.",
                ),
                strength_input(
                    "Multiplies the recipe's strength. 1 repeats the erasure as saved. 0 leaves the"
                    " model unchanged."
                ),
            ],
            outputs=erase_outputs(),
            is_output_node=True,  # so that Run shows the result, also one that ComfyUI has cached
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def validate_inputs(
        cls, recipe: str | None = None, strength: float | None = None
    ) -> bool | str:
        from ..speed_ops.job import check_strength

        def check() -> None:
            check_strength(1.0 if strength is None else strength)
            if recipe is not None:
                stored_job(recipe)

        return validation(check)

    @classmethod
    def fingerprint_inputs(
        cls, recipe: str | None = None, strength: float | None = None, **wired: Any
    ) -> str:
        return f"{recipe}{strength}{state_of(recipe_file(recipe)) if recipe else ''}"

    @classmethod
    def execute(cls, model: Any, clip: Any, recipe: str, strength: float) -> io.NodeOutput:
        from .erase_output import erase_output

        stored = stored_job(recipe)
        notes = [*stored.notes, *skip_note(stored.clip_skip, clip.layer_idx)]
        return erase_output(cls, model, clip, stored.job, strength * stored.strength, notes)


def stored_job(name: str) -> StoredJob:
    """The job of a recipe file by the name that the widget shows."""
    from ..speed_ops.recipe import Recipe, job_of

    return job_of(Recipe.read(recipe_file(name)), f"The recipe {name}")


def skip_note(stored: int | None, wired: int | None) -> list[str]:
    """A sentence if the recipe was saved with another CLIP skip."""
    if stored is None or stored == wired:
        return []
    return [
        f"The recipe was saved with CLIP skip {stored}, but this CLIP has {wired or 'none'}. Set"
        f" CLIP skip to {stored}."
    ]
