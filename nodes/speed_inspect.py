"""SPEED Inspect: what a file records about the erasures in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from comfy_api.latest import io

from .host.paths import model_file, model_names, state_of
from .sockets import CATEGORY, ui_text

if TYPE_CHECKING:
    from ..speed_ops.provenance import Provenance


class SpeedInspect(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeedInspect",
            display_name="SPEED Inspect",
            category=CATEGORY,
            description=(
                "Shows which concepts were erased from a checkpoint or LoRA, according to its"
                " header."
            ),
            is_output_node=True,
            inputs=[
                io.Combo.Input(
                    "file", options=model_names(), tooltip="A checkpoint, diffusion model or LoRA."
                )
            ],
            outputs=[io.String.Output(display_name="text", tooltip="What the header says.")],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def fingerprint_inputs(cls, file: str | None = None) -> str:
        return f"{file}{state_of(model_file(file)) if file else ''}"

    @classmethod
    def execute(cls, file: str) -> io.NodeOutput:
        from ..speed_ops.files.checkpoint import Checkpoint
        from ..speed_ops.provenance import read_provenance

        text = describe(read_provenance(Checkpoint.open(model_file(file)).metadata, file), file)
        return io.NodeOutput(text, ui=ui_text(cls, text))


def describe(provenance: Provenance | None, name: str) -> str:
    """The provenance in plain words."""
    from ..speed_ops.certificate.certificate import verdict_in_words

    if provenance is None:
        return f"{name} says nothing about erased concepts: it was not written by this package."
    lines = [f"{name}, written by this package (format {provenance.version})."]
    recipe = provenance.recipe
    if recipe is not None:
        note = "" if recipe.has_names else " (without names)"
        lines.append(f"{len(recipe.concepts)} concepts erased{note}:")
        for concept in recipe.concepts:
            lines.append(f"  {concept.target} -> {concept.anchor or '(nothing)'}")
        sets = ", ".join(source.label for source in recipe.retain) or "none"
        preset = recipe.settings.get("preset_name", "unknown")
        lines.append(f"Retain sets: {sets}. Preset: {preset}.")
    for result in provenance.certificate.get("concepts", []):
        if isinstance(result, dict):
            lines.append(f"  {result.get('name')}: {verdict_in_words(result.get('verdict'))}")
    return "\n".join(lines)
