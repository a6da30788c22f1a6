"""What a node that erases gives: model, LoRA, erasure, report and chart, and the screen's panel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from comfy_api.latest import io

from ..speed_ops.report.panel import panel, summary
from .charts import erasure_image
from .erasing import run_erase
from .host.patching import lora_state
from .report_page import offer_page
from .sockets import ui_text

if TYPE_CHECKING:
    from ..speed_ops.job import Job

_MAX_RECIPE = 200_000
"""Characters of a recipe that the screen gets to copy. A longer one is saved as a file."""


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
    report = erasure.text()
    facts = panel(erasure) | {"page": offer_page(erasure, model.model_size())}
    recipe = "" if erasure.recipe is None else erasure.recipe.to_json()
    ui = ui_text(node, report, summary(erasure)) | {
        "speed": (facts,),
        "recipe": (recipe if len(recipe) <= _MAX_RECIPE else "",),
    }
    lora = lora_state(erasure.edits, erasure.layers)
    return io.NodeOutput(patched, lora, erasure, report, erasure_image(erasure), ui=ui)
