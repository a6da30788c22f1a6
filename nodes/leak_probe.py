"""SpeedLeakProbe: which ways to ask for an erased thing still draw it."""

from __future__ import annotations

from comfy_api.latest import io

from ..speed_ops.leaks import TEMPLATES
from .probing import leaks_of
from .showing import shows_text, telling
from .sockets import CATEGORY, Concepts, Erasure


class SpeedLeakProbe(io.ComfyNode):
    """A schema and one call."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeedLeakProbe",
            display_name="SPEED Leak Probe",
            category=CATEGORY,
            description="Tries names, aliases, slips of the hand and descriptions in prompts the solve did not see, "
            "and lists those that still draw what was erased.",
            is_output_node=True,
            inputs=[
                io.Model.Input("model", tooltip="The model BEFORE the erasure: the same wire that SpeedErase got."),
                io.Clip.Input("clip", tooltip="The CLIP of the same checkpoint."),
                Erasure.Input("erasure", tooltip="From SpeedErase or SpeedApplyRecipe."),
                io.Int.Input(
                    "templates",
                    default=TEMPLATES,
                    min=0,
                    max=5,
                    tooltip="Contexts tried beside the bare phrase; each costs one prompt for every phrase.",
                ),
                io.String.Input(
                    "description",
                    default="",
                    tooltip="Your own words for the thing, without its name; empty: patterns of its kind.",
                ),
                Concepts.Input("concepts", optional=True, tooltip="What to probe for; else what the erasure erased."),
            ],
            outputs=[
                io.String.Output(display_name="text", tooltip="Every phrase that was tried, worst first."),
                Concepts.Output(
                    display_name="leaking", tooltip="The leaking phrases alone: erase them from the ERASED model."
                ),
                Concepts.Output(
                    display_name="closed",
                    tooltip="The erased concepts with leaking phrases as aliases: erase them from the ORIGINAL model.",
                ),
            ],
            hidden=shows_text(),
        )

    @classmethod
    def execute(cls, model, clip, erasure, templates, description="", concepts=None) -> io.NodeOutput:
        asked = tuple(concepts) if concepts is not None else erasure.concepts
        found = leaks_of(model, clip, erasure, asked, templates, description)
        return io.NodeOutput(found.text(), found.phrases(), found.closed(), ui=telling(cls, found.text()))
