"""What all nodes share: socket types, text under a node, charts as IMAGE tensors."""

from __future__ import annotations

import torch
from comfy_api.latest import io
from torch import Tensor

from ..speed_ops.certificate.forecast import Forecast
from ..speed_ops.erase import Outcome
from ..speed_ops.report.chart import Pixels, certificate_chart, forecast_chart
from .host.progress import show_text

CATEGORY = "SPEED"
Concepts = io.Custom("SPEED_CONCEPTS")
"""A `ConceptList` of the engine."""
Retain = io.Custom("SPEED_RETAIN")
"""A `RetainSet` of the engine."""
Erasure = io.Custom("SPEED_ERASURE")
"""An `Outcome` of the engine."""
Settings = io.Custom("SPEED_SETTINGS")
"""{setting: value}: what differs from a preset."""


def strength_input(tooltip: str) -> io.Input:
    """How much of an edit is applied."""
    return io.Float.Input("strength", default=1.0, min=-5.0, max=5.0, step=0.05, tooltip=tooltip)


def shows_text() -> list[io.Hidden]:
    """Hidden inputs that a node needs for `telling`; a new list each time, because schemas add to theirs."""
    return [io.Hidden.unique_id]


def telling(node: type[io.ComfyNode], text: str) -> dict[str, tuple[str]]:
    """The `ui` of a node that tells something, after showing it."""
    show_text(node.hidden, text)
    return {"text": (text,)}


def erasure_chart(outcome: Outcome) -> Tensor:
    """`1 x height x width x 3` in 0 to 1."""
    if outcome.certificate is None:
        return torch.ones(1, 64, 64, 3)
    return _image(certificate_chart(outcome.certificate))


def forecast_image(forecast: Forecast) -> Tensor:
    """`1 x height x width x 3` in 0 to 1."""
    return _image(forecast_chart(forecast))


def _image(pixels: Pixels) -> Tensor:
    return torch.from_numpy(pixels).float().div(255)[None]
