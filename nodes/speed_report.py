"""SPEED Report: the certificate as text, JSON and chart."""

from __future__ import annotations

import json

from comfy_api.latest import io, ui

from ..speed_ops.erasure import Erasure
from .sockets import CATEGORY, ErasureSocket, erasure_chart, shows_text, telling


class SpeedReport(io.ComfyNode):
    """Its inputs, its outputs, and the call."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeedReport",
            display_name="SPEED Report",
            category=CATEGORY,
            description=(
                "Shows what an erasure did: what is left of each concept and how far kept names"
                " moved."
            ),
            is_output_node=True,
            inputs=[
                ErasureSocket.Input("erasure", tooltip="From SPEED Erase or SPEED Apply Recipe.")
            ],
            outputs=[
                io.String.Output(display_name="text", tooltip="The report in plain words."),
                io.String.Output(display_name="json", tooltip="Every measurement, for programs."),
                io.Image.Output(display_name="chart", tooltip="The report as a picture."),
            ],
            hidden=shows_text(),
        )

    @classmethod
    def execute(cls, erasure) -> io.NodeOutput:
        text, chart = describe(erasure), erasure_chart(erasure)
        facts = erasure.certificate.to_json() if erasure.certificate is not None else {}
        told = ui.PreviewImage(chart, cls=cls).as_dict() | telling(cls, text)
        return io.NodeOutput(text, json.dumps(facts, indent=1), chart, ui=told)


def describe(erasure: Erasure) -> str:
    """The erasure's own report; for one that came from a file, what its recipe says."""
    if erasure.certificate is not None:
        return erasure.text()
    names = (
        ", ".join(one.target for one in erasure.recipe.concepts)
        if erasure.recipe is not None
        else "unknown names"
    )
    return (
        f"This erasure came from a file ({names}). It has no certificate for this model: use SPEED"
        " Apply Recipe to get one."
    )
