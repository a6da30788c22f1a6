"""Preview Side Effects: which names an erasure would change, before any edit."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..speed_ops.text.concept_list import ConceptList
from ..speed_ops.text.retain_set import RetainSet
from .host.progress import comfy_workplace, outside_inference_mode
from .sockets import CATEGORY, ConceptsSocket, RetainSocket, image_of, search_aliases, ui_chart
from .speed_settings import preset_settings


class SpeedForecast(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeedForecast",
            display_name="Preview Side Effects",
            category=CATEGORY,
            **search_aliases("side effects"),
            description=(
                "Shows which names an erasure would change most if nothing protected them, before"
                " any edit."
            ),
            is_output_node=True,
            inputs=[
                io.Model.Input("model", tooltip="The model to erase from."),
                io.Clip.Input("clip", tooltip="The CLIP from the same checkpoint."),
                ConceptsSocket.Input(
                    "concepts", tooltip="What you plan to erase, from Concept List."
                ),
                io.Int.Input(
                    "shown", default=20, min=1, max=1000, tooltip="How many names to list."
                ),
                RetainSocket.Input(
                    "retain",
                    display_name="protected names",
                    optional=True,
                    tooltip=(
                        "Names to check, from Retain Set Loader. Without it, SPEED checks the"
                        " built-in names for the type."
                    ),
                ),
            ],
            outputs=[
                io.String.Output(display_name="text", tooltip="The names, most affected first."),
                io.Image.Output(
                    display_name="chart", tooltip="The twenty most affected names as bars."
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
        concepts: ConceptList,
        shown: int,
        retain: RetainSet | None = None,
    ) -> io.NodeOutput:
        from ..speed_ops.erase import predict
        from ..speed_ops.job import Job
        from ..speed_ops.report.chart import forecast_chart
        from .host.wiring import wire

        job = Job.of(concepts, retain, preset_settings("auto", 0))
        workplace = comfy_workplace()
        with wire(model, clip, job.settings.layers, job.concepts, cls.hidden, workplace) as wired:
            forecast = predict(job, wired.model, wired.reader, wired.progress, workplace)
        lines = [f"Predicted drift of {len(forecast.names)} names if nothing protected them:"]
        for name, shift in zip(forecast.names[:shown], forecast.shifts[:shown], strict=True):
            lines.append(f"{shift:.2f}  {name}")
        text = "\n".join([*lines, *workplace.notes, *wired.reader.encoder.notes])
        chart = image_of(forecast_chart(forecast))
        return io.NodeOutput(text, chart, ui=ui_chart(cls, text, chart))
