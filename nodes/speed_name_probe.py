"""Does It Know?: how strongly a model responds to a name, without generating an image."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..speed_ops.errors import InputError
from ..speed_ops.text.concept_list import Concept
from ..speed_ops.text.kinds import KINDS
from ..speed_ops.text.retain_set import RetainSet
from .host.progress import comfy_workplace, outside_inference_mode
from .sockets import CATEGORY, RetainSocket, image_of, search_aliases, ui_chart


class SpeedNameProbe(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeedNameProbe",
            display_name="Does It Know?",
            category=CATEGORY,
            **search_aliases("does this model know me", "name"),
            description=(
                "Measures how strongly a model responds to a name, next to known names and invented"
                " ones. No image is generated."
            ),
            is_output_node=True,
            inputs=[
                io.Model.Input("model", tooltip="The model to ask."),
                io.Clip.Input("clip", tooltip="The CLIP from the same checkpoint."),
                io.String.Input("name", default="", tooltip="The name to look for."),
                io.Combo.Input(
                    "kind",
                    display_name="type",
                    options=list(KINDS),
                    default="style",
                    tooltip="What the name is. Use style for an artist.",
                ),
                io.Int.Input(
                    "templates",
                    display_name="prompts per known name",
                    default=3,
                    min=1,
                    max=20,
                    tooltip="How many prompts to put each known name in. More prompts take longer.",
                ),
                RetainSocket.Input(
                    "known",
                    display_name="known names",
                    optional=True,
                    tooltip=(
                        "Names to compare with, from Retain Set Loader. Without it, SPEED takes"
                        " 1,000 built-in names of the type."
                    ),
                ),
            ],
            outputs=[
                io.String.Output(display_name="text", tooltip="The result in words."),
                io.Image.Output(
                    display_name="chart", tooltip="The name next to known and invented names."
                ),
            ],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    @outside_inference_mode
    def execute(
        cls,
        model: Any,
        clip: Any,
        name: str,
        kind: str,
        templates: int,
        known: RetainSet | None = None,
    ) -> io.NodeOutput:
        from ..speed_ops.name_probe import probe_name
        from ..speed_ops.report.chart import name_chart
        from .host.wiring import wire

        name = " ".join(name.split())
        if not name:
            raise InputError("There is no name to look for. Type one into 'name'.")
        concepts = (Concept(name, "", kind),)
        workplace = comfy_workplace()
        with wire(model, clip, "KV", concepts, cls.hidden, workplace) as wired:
            report = probe_name(
                wired.reader,
                wired.model.weights,
                name,
                kind,
                known,
                prompting=wired.model.architecture.prompting,
                prompts=templates,
                progress=wired.progress,
                workplace=workplace,
            )
        text = "\n".join([report.text(), *workplace.notes])
        chart = image_of(name_chart(report))
        return io.NodeOutput(text, chart, ui=ui_chart(cls, text, chart))
