"""What all nodes share: socket types, common inputs and outputs, and text under a node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from comfy_api.latest import io, ui

from ..speed_ops.errors import SpeedError
from .host.progress import show_text
from .host.run_identity import run_code

CATEGORY = "SPEED"
ConceptsSocket = io.Custom("SPEED_CONCEPTS")
"""A `ConceptList` of the engine."""
RetainSocket = io.Custom("SPEED_RETAIN")
"""A `RetainSet` of the engine."""
ErasureSocket = io.Custom("SPEED_ERASURE")
"""An `Erasure` of the engine."""
SettingsSocket = io.Custom("SPEED_SETTINGS")
"""{setting: value}: what differs from a preset."""

_COMMON_ALIASES = ["unlearn", "forget", "remove style", "concept erasure", "erase concept"]


def search_aliases(*words: str) -> dict[str, list[str]]:
    """For a schema: more words that find the node. Empty on versions of ComfyUI without them."""
    return _if_known("search_aliases", [*words, *_COMMON_ALIASES])


def essentials(category: str) -> dict[str, str]:
    """For a schema: where the node is among the essential ones. Empty on older versions."""
    return _if_known("essentials_category", category)


def _if_known(field: str, value: Any) -> dict[str, Any]:
    return {field: value} if field in getattr(io.Schema, "__dataclass_fields__", {}) else {}


def strength_input(
    tooltip: str, low: float = -5.0, high: float = 5.0, slider: bool = False
) -> io.Input:
    """How much of an edit is applied.

    Args:
        tooltip: What it does in this node.
        low: The least.
        high: The most.
        slider: Whether it is shown as a slider.
    """
    display = io.NumberDisplay.slider if slider else None
    limits = {"min": low, "max": high, "step": 0.05}
    return io.Float.Input("strength", default=1.0, **limits, display_mode=display, tooltip=tooltip)


def erase_outputs() -> list[io.Output]:
    """The outputs of every node that erases."""
    return [
        io.Model.Output(
            display_name="model",
            tooltip="A copy without the concepts. The input model stays unchanged.",
        ),
        io.LoraModel.Output(
            display_name="lora",
            tooltip="The edit at strength 1, for Save LoRA Weights and ComfyUI's other LoRA nodes.",
        ),
        ErasureSocket.Output(
            display_name="erasure",
            tooltip="For Save Erased Model, Erasure Report and Find Leaks.",
        ),
        io.String.Output(
            display_name="report", tooltip="The verdicts, the side effects and all measurements."
        ),
        io.Image.Output(display_name="chart", tooltip="The report as an image."),
    ]


def ui_text(node: type[io.ComfyNode], text: str, short: str = "") -> dict[str, tuple[str]]:
    """Shows text under a node, which needs its hidden `unique_id`, and returns it as its `ui`, with
    the code of the run.

    Args:
        node: The node class that runs.
        text: The text that goes into the history.
        short: What to show under the node instead, if its panel already shows the text.
    """
    show_text(node.hidden, short or text)
    return {"text": (text,), "run": (run_code(node.hidden),)}


def ui_chart(node: type[io.ComfyNode], text: str, chart: torch.Tensor) -> dict[str, Any]:
    """Shows a chart and a text on a node, as `ui_text` does.

    Args:
        node: The node class that runs.
        text: The text.
        chart: The value of its IMAGE socket.
    """
    (file,) = ui.PreviewImage(chart, cls=node).as_dict()["images"]
    return ui_text(node, text) | {"speed": ({"chart": file},)}


def image_of(pixels: Any) -> torch.Tensor:
    """The bytes of an image (`height x width x 3`) as the value of an IMAGE socket."""
    return torch.from_numpy(pixels).float().div(255)[None]


def validation(check: Callable[[], object]) -> bool | str:
    """The answer of `validate_inputs`: True, or the sentence with which `check` refuses."""
    try:
        check()
    except SpeedError as error:
        return str(error)
    return True
