"""What all nodes share: socket types, text under a node, charts as IMAGE tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from comfy_api.latest import io
from torch import Tensor

from ..speed_ops.certificate.forecast import Forecast
from ..speed_ops.erasure import Erasure
from ..speed_ops.report.chart import Pixels, certificate_chart, forecast_chart, picture_grid
from .host.progress import show_text

CATEGORY = "SPEED"
ConceptsSocket = io.Custom("SPEED_CONCEPTS")
"""A `ConceptList` of the engine."""
RetainSocket = io.Custom("SPEED_RETAIN")
"""A `RetainSet` of the engine."""
ErasureSocket = io.Custom("SPEED_ERASURE")
"""An `Erasure` of the engine."""
SettingsSocket = io.Custom("SPEED_SETTINGS")
"""{setting: value}: what differs from a preset."""


_SEARCHED = ["unlearn", "forget", "remove style", "concept erasure", "erase concept"]


def found_by(*words: str) -> dict[str, list[str]]:
    """For a schema: other words that find the node; nothing on versions of ComfyUI that know
    none.
    """
    known = "search_aliases" in getattr(io.Schema, "__dataclass_fields__", {})
    return {"search_aliases": [*words, *_SEARCHED]} if known else {}


def strength_input(tooltip: str) -> io.Input:
    """How much of an edit is applied."""
    return io.Float.Input("strength", default=1.0, min=-5.0, max=5.0, step=0.05, tooltip=tooltip)


def shows_text() -> list[io.Hidden]:
    """Hidden inputs that a node needs for `telling`; a new list each time, because schemas add to
    theirs.
    """
    return [io.Hidden.unique_id]


def telling(node: type[io.ComfyNode], text: str, short: str = "") -> dict[str, tuple[str]]:
    """The `ui` of a node that tells something, after showing it; `short`: what is shown where the
    screen draws more.
    """
    show_text(node.hidden, short or text)
    return {"text": (text,)}


def erasure_chart(outcome: Erasure) -> Tensor:
    """`1 x height x width x 3` in 0 to 1."""
    if outcome.certificate is None:
        return torch.ones(1, 64, 64, 3)
    return _image(certificate_chart(outcome.certificate))


def forecast_image(forecast: Forecast) -> Tensor:
    """`1 x height x width x 3` in 0 to 1."""
    return _image(forecast_chart(forecast))


def pairs_image(rows: Sequence[tuple[str, Sequence[Tensor]]]) -> Tensor:
    """`1 x height x width x 3`: rows of pictures (`height x width x 3`), each under its title."""
    return _image(
        picture_grid(
            [
                (title, [(one * 255).round().byte().numpy() for one in parts])
                for title, parts in rows
            ]
        )
    )


def _image(pixels: Pixels) -> Tensor:
    return torch.from_numpy(pixels).float().div(255)[None]
