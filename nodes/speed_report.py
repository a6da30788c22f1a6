"""Erasure Report: the certificate as text, JSON and chart."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import torch
from comfy_api.latest import io

from .sockets import CATEGORY, ErasureSocket, image_of, search_aliases, ui_chart

if TYPE_CHECKING:
    from ..speed_ops.erasure import Erasure


class SpeedReport(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeedReport",
            display_name="Erasure Report",
            category=CATEGORY,
            **search_aliases("certificate", "measurements"),
            description=(
                "Shows all measurements of an erasure: how much of each concept remains, and how"
                " far other names moved."
            ),
            is_output_node=True,
            inputs=[ErasureSocket.Input("erasure", tooltip="From SPEED Erase or Rerun Recipe.")],
            outputs=[
                io.String.Output(display_name="text", tooltip="The report in plain words."),
                io.String.Output(display_name="json", tooltip="All measurements, for programs."),
                io.Image.Output(display_name="chart", tooltip="The report as an image."),
            ],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def execute(cls, erasure: Erasure) -> io.NodeOutput:
        text, chart = describe(erasure), erasure_chart(erasure)
        facts = erasure.certificate.to_json() if erasure.certificate is not None else {}
        shown = ui_chart(cls, text, chart)
        return io.NodeOutput(text, json.dumps(facts, indent=1), chart, ui=shown)


def erasure_chart(erasure: Erasure) -> torch.Tensor:
    """The certificate as a chart; a blank image if there is none."""
    from ..speed_ops.report.chart import certificate_chart

    if erasure.certificate is None:
        return torch.ones(1, 64, 64, 3)
    return image_of(certificate_chart(erasure.certificate))


def describe(erasure: Erasure) -> str:
    """The erasure's report, or the names in the recipe of one that came from a file."""
    if erasure.certificate is not None:
        return erasure.text(verbose=True)
    names = "unknown names"
    if erasure.recipe is not None:
        names = ", ".join(concept.target for concept in erasure.recipe.concepts)
    return (
        f"This erasure came from a file ({names}), without measurements for this model. To get"
        " them, use Rerun Recipe."
    )
