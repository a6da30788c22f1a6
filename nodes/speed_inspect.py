"""Inspect Model File: what a file records about its erasure."""

from __future__ import annotations

from comfy_api.latest import io

from .host.paths import model_file, model_names, state_of, temporary_text
from .sockets import CATEGORY, search_aliases, ui_text


class SpeedInspect(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeedInspect",
            display_name="Inspect Model File",
            category=CATEGORY,
            **search_aliases("model info", "metadata"),
            description=(
                "Shows what the header of a checkpoint or LoRA records about an erasure. Anyone can"
                " write a header. To check the weights, run `speed-erase verify`."
            ),
            is_output_node=True,
            inputs=[
                io.Combo.Input(
                    "file", options=model_names(), tooltip="A checkpoint, diffusion model or LoRA."
                )
            ],
            outputs=[
                io.String.Output(
                    display_name="text", tooltip="What the header records, not verified."
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
        from ..speed_ops.report.recorded import recorded_lines

        provenance = read_provenance(Checkpoint.open(model_file(file)).metadata, file)
        lines = recorded_lines(provenance) if provenance else ["No erasure is recorded in it."]
        text = "\n".join([file, *lines])
        shown = ui_text(cls, text) | {"texts": (temporary_text(text),)}
        return io.NodeOutput(text, ui=shown)
