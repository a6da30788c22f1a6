"""What a node that erases gives: its outputs, the panel in the UI, and the report as a page."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from comfy_api.latest import io

from ..speed_ops.erasure import Erasure
from ..speed_ops.errors import NotFoundError
from ..speed_ops.files.atomic import write_bytes
from ..speed_ops.report.html import report_page
from ..speed_ops.report.panel import panel
from .erasing import run_erase
from .host.patching import lora_state
from .host.paths import temporary_file
from .sockets import ui_text
from .speed_report import erasure_chart

if TYPE_CHECKING:
    from ..speed_ops.job import Job

_MAX_RECIPE = 200_000
"""Characters of a recipe that the UI gets to copy. A longer one is saved as a file."""
_OFFERED = 8
_offered: OrderedDict[str, tuple[Erasure, int]] = OrderedDict()
"""File name of a page -> erasure and bytes of the model, for the last runs."""


def erase_output(
    node: type[io.ComfyNode],
    model: Any,
    clip: Any,
    job: Job,
    strength: float,
    notes: Sequence[str] = (),
) -> io.NodeOutput:
    """Erases and returns the outputs of a node that erases.

    Args:
        node: The node class that runs.
        model: ComfyUI's MODEL.
        clip: ComfyUI's CLIP.
        job: What to erase and how.
        strength: Factor on the edit.
        notes: Sentences for the report.
    """
    patched, erasure = run_erase(model, clip, job, strength, node.hidden)
    erasure = replace(erasure, notes=(*erasure.notes, *notes))
    report = erasure.text(verbose=True)
    facts = panel(erasure) | {"page": offer_page(erasure, model.model_size())}
    recipe = "" if erasure.recipe is None else erasure.recipe.to_json()
    ui = ui_text(node, report, erasure.text()) | {
        "speed": (facts,),
        "recipe": (recipe if len(recipe) <= _MAX_RECIPE else "",),
    }
    lora = lora_state(erasure.edits, erasure.layers)
    return io.NodeOutput(patched, lora, erasure, report, erasure_chart(erasure), ui=ui)


def offer_page(erasure: Erasure, model_bytes: int) -> dict[str, str]:
    """Where ComfyUI's `/view` will find the page, once `write_page` has written it."""
    name = f"speed_report_{uuid4().hex[:16]}.html"
    _offered[name] = erasure, model_bytes
    while len(_offered) > _OFFERED:
        _offered.popitem(last=False)
    return temporary_file(name)[1]


def write_page(question: dict[str, Any]) -> dict[str, Any]:
    """Renders the page with that file name into ComfyUI's temporary folder."""
    name = str(question.get("filename"))
    if name not in _offered:
        raise NotFoundError("There is no report for this run any more: run the graph again.")
    erasure, model_bytes = _offered[name]
    path, view = temporary_file(name)
    page = report_page(erasure, "the model in the graph", model_bytes)
    write_bytes(path, page.encode("utf-8"), force=True)
    return view
