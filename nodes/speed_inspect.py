"""Inspect Model File: what a file records about its erasure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from comfy_api.latest import io

from .host.paths import model_file, model_names, state_of
from .sockets import CATEGORY, search_aliases, ui_text

if TYPE_CHECKING:
    from ..speed_ops.provenance import Provenance


class SpeedInspect(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeedInspect",
            display_name="Inspect Model File",
            category=CATEGORY,
            **search_aliases("model info", "metadata"),
            description=(
                "Shows what was erased from a checkpoint, diffusion model or LoRA, from its header."
            ),
            is_output_node=True,
            inputs=[
                io.Combo.Input(
                    "file", options=model_names(), tooltip="A checkpoint, diffusion model or LoRA."
                )
            ],
            outputs=[
                io.String.Output(
                    display_name="text", tooltip="What the file records about its erasure."
                )
            ],
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
    from ..speed_ops.certificate.summary import concept_title

    if provenance is None:
        return f"{name} has no record of an erasure. SPEED did not write this file."
    lines = [f"{name}, written by SPEED (format {provenance.version})"]
    recipe = provenance.recipe
    if recipe is not None:
        note = "" if recipe.has_names else " (without names)"
        lines.append(f"{len(recipe.concepts)} concepts erased{note}:")
        for concept in recipe.concepts:
            lines.append(f"  {concept_title(concept.target, concept.anchor)}")
        sets = ", ".join(source.label for source in recipe.retain) or "none"
        preset = recipe.settings.get("preset_name", "unknown")
        lines.append(f"Protected names: {sets}. Preset: {preset}.")
    for result in provenance.certificate.get("concepts", []):
        if isinstance(result, dict):
            lines.append(f"  {result.get('name')}: {verdict_in_words(result.get('verdict'))}")
    return "\n".join(lines)
