"""SPEED Inspect: what a file says about the erasures in it."""

from __future__ import annotations

from comfy_api.latest import io

from ..speed_ops.certificate.certificate import verdict_in_words
from ..speed_ops.files.checkpoint import Checkpoint
from ..speed_ops.provenance import Provenance, read_provenance
from .host.paths import model_file, model_names, state_of
from .sockets import CATEGORY, shows_text, telling


class SpeedInspect(io.ComfyNode):
    """Its inputs, its outputs, and the call."""

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
            hidden=shows_text(),
        )

    @classmethod
    def fingerprint_inputs(cls, file=None) -> str:
        return f"{file}{state_of(model_file(file)) if file else ''}"

    @classmethod
    def execute(cls, file) -> io.NodeOutput:
        text = describe(read_provenance(Checkpoint.open(model_file(file)).metadata, file), file)
        return io.NodeOutput(text, ui=telling(cls, text))


def describe(found: Provenance | None, name: str) -> str:
    """The provenance in plain words."""
    if found is None:
        return f"{name} says nothing about erased concepts: it was not written by this package."
    lines = [f"{name}, written by this package (format {found.version})."]
    if found.recipe is not None:
        kind = "" if found.recipe.has_names else " (without names)"
        lines.append(f"{len(found.recipe.concepts)} concepts erased{kind}:")
        lines += [f"  {one.target} -> {one.anchor or '(nothing)'}" for one in found.recipe.concepts]
        kept = ", ".join(part.label for part in found.recipe.retain) or "none"
        lines.append(
            f"Retain sets: {kept}. Preset: {found.recipe.settings.get('preset_name', 'unknown')}."
        )
    for one in found.certificate.get("concepts", []):
        if isinstance(one, dict):
            lines.append(f"  {one.get('name')}: {verdict_in_words(one.get('verdict'))}")
    return "\n".join(lines)
