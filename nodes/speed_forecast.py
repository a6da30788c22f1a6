"""SPEED Forecast: what an erasure would endanger, before any edit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from comfy_api.latest import io

from ..speed_ops.certificate.forecast import Forecast
from ..speed_ops.engine.settings import EraseSettings
from ..speed_ops.erase import predict
from ..speed_ops.job import Job
from ..speed_ops.text.concept_list import Concept
from ..speed_ops.text.retain_set import RetainSet
from .erasing import wire
from .host.progress import outside_inference_mode
from .sockets import CATEGORY, ConceptsSocket, RetainSocket, forecast_image, shows_text, telling
from .speed_settings import settings_from


class SpeedForecast(io.ComfyNode):
    """Its inputs, its outputs, and the call."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeedForecast",
            display_name="SPEED Forecast",
            category=CATEGORY,
            description=(
                "Before any edit: which names an erasure would move most if nothing protected them."
            ),
            is_output_node=True,
            inputs=[
                io.Model.Input("model", tooltip="The model to erase from."),
                io.Clip.Input("clip", tooltip="The CLIP from the same checkpoint."),
                ConceptsSocket.Input("concepts", tooltip="What would be erased."),
                io.Int.Input(
                    "shown", default=20, min=1, max=1000, tooltip="How many names the text lists."
                ),
                RetainSocket.Input(
                    "retain",
                    optional=True,
                    tooltip=(
                        "Names to ask about, from Retain Set Loader. Without it, the built-in names"
                        " for the kind are used."
                    ),
                ),
            ],
            outputs=[
                io.String.Output(display_name="text", tooltip="The names, most endangered first."),
                io.Image.Output(display_name="chart", tooltip="The first twenty as bars."),
            ],
            hidden=shows_text(),
        )

    @classmethod
    def execute(cls, model, clip, concepts, shown, retain=None) -> io.NodeOutput:
        found = forecast_names(model, clip, concepts, retain, settings_from("auto", 0), cls.hidden)
        text = forecast_text(found, shown)
        return io.NodeOutput(text, forecast_image(found), ui=telling(cls, text))


@outside_inference_mode
def forecast_names(
    model: Any,
    clip: Any,
    concepts: Sequence[Concept],
    retain: RetainSet | None,
    settings: EraseSettings,
    hidden: Any = None,
) -> Forecast:
    """The kept names by how far an unprotected edit would move them."""
    job = Job.of(concepts, retain, settings)
    with wire(model, clip, settings, concepts, hidden) as wired:
        return predict(job, wired.model, wired.reader, wired.progress)


def forecast_text(forecast: Forecast, shown: int) -> str:
    """The most endangered names, one per line."""
    lines = [
        f"{shift:6.1%}  {name}"
        for name, shift in zip(forecast.names[:shown], forecast.shifts[:shown], strict=True)
    ]
    return "\n".join(
        [f"Predicted shift of {len(forecast.names)} names if nothing protected them:", *lines]
    )
