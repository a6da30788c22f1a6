"""SpeedSettings: single settings of a preset, for those who want them. SpeedErase stays short without it."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..speed_ops.errors import SpeedError
from .settings_widgets import check_moved, expert_inputs, moved
from .sockets import CATEGORY, Settings


class SpeedSettings(io.ComfyNode):
    """A schema and one call."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeedSettings",
            display_name="SPEED Settings",
            category=CATEGORY,
            description="Expert settings for SPEED Erase. Widgets left at -1 or 'as preset' change nothing.",
            inputs=expert_inputs(),
            outputs=[Settings.Output(display_name="settings", tooltip="For SpeedErase.")],
        )

    @classmethod
    def validate_inputs(cls, **widgets: Any) -> bool | str:
        try:
            check_moved(moved(widgets))
        except SpeedError as error:
            return str(error)
        return True

    @classmethod
    def execute(cls, **widgets: Any) -> io.NodeOutput:
        return io.NodeOutput(moved(widgets))
