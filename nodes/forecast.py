"""SpeedForecast: the blast radius before the edit."""

from __future__ import annotations

from comfy_api.latest import io

from .chart import forecast_image
from .probing import forecast_names, forecast_text
from .settings_widgets import settings_from
from .showing import shows_text, telling
from .sockets import CATEGORY, Concepts, Retain


class SpeedForecast(io.ComfyNode):
    """A schema and one call."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeedForecast",
            display_name="SPEED Forecast",
            category=CATEGORY,
            description="Before any edit: which retained names an erasure would move most if nothing protected them.",
            is_output_node=True,
            inputs=[
                io.Model.Input("model", tooltip="The model to erase from."),
                io.Clip.Input("clip", tooltip="The CLIP of the same checkpoint."),
                Concepts.Input("concepts", tooltip="What would be erased."),
                io.Int.Input("shown", default=20, min=1, max=1000, tooltip="How many names the text lists."),
                Retain.Input("retain", optional=True, tooltip="Names to ask about; else the kind's built-in set."),
            ],
            outputs=[
                io.String.Output(display_name="text", tooltip="The names, most endangered first."),
                io.Image.Output(display_name="chart", tooltip="The first twenty as bars."),
            ],
            hidden=shows_text(),
        )

    @classmethod
    def execute(cls, model, clip, concepts, shown, retain=None) -> io.NodeOutput:
        found = forecast_names(model, clip, concepts, retain, settings_from("auto", 0))
        text = forecast_text(found, shown)
        return io.NodeOutput(text, forecast_image(found), ui=telling(cls, text))
